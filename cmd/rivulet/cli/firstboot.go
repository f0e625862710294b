package cli

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"

	"github.com/spf13/cobra"
	"golang.org/x/sys/unix"

	"rivulet/appliance/lifetime/firstboot"
	"rivulet/image/device/layout"
	"rivulet/systemd"
)

func newFirstboot(*common) *cobra.Command {
	dev := firstboot.Device{Root: "/"}
	cmd := &cobra.Command{
		Use:    "firstboot",
		Short:  "take what rivulet.yaml on the boot partition says; the image runs this at each boot",
		Hidden: true, // for a unit of the image: on any other machine it refuses
		Args:   noArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if !onImage(dev.Root) {
				return errors.New("this is not a device of Rivulet's image, whose name and networks are Rivulet's to set; set what you want in /etc/rivulet/config.yaml")
			}
			if os.Geteuid() != 0 {
				return errors.New("firstboot needs root; use sudo")
			}
			note, err := firstBoot(withBoot(dev))
			if err != nil {
				return err
			}
			for _, p := range note.Problems {
				fmt.Fprintln(cmd.ErrOrStderr(), "rivulet: "+oneLine(p.Error()))
			}
			_, err = fmt.Fprintf(cmd.OutOrStdout(), "this device is %s\n", note.Hostname)
			return err
		},
	}
	cmd.Flags().StringVar(&dev.Root, "root", "/", "the device's root, for tests")
	cmd.Flags().StringVar(&dev.Boot, "boot", layout.BootDir, "where the boot partition is mounted")
	return cmd
}

// onImage reports whether this is a device of Rivulet's image.
func onImage(root string) bool {
	_, err := os.Stat(filepath.Join(root, systemd.ImageMark))
	return err == nil
}

// withBoot adds how the device's boot partition becomes writable.
func withBoot(dev firstboot.Device) firstboot.Device {
	dev.Open = func() (func(), error) { return writable(filepath.Join(dev.Root, dev.Boot)) }
	return dev
}

// firstBoot applies the card's file and sets the host's name.
func firstBoot(dev firstboot.Device) (firstboot.Note, error) {
	note, err := firstboot.Run(dev)
	if err == nil && dev.Root == "/" {
		if err := unix.Sethostname([]byte(note.Hostname)); err != nil {
			return note, fmt.Errorf("the host's name cannot be set: %w; start the device again", err)
		}
	}
	return note, err
}

// writable makes the boot partition writable if it is mounted read-only.
func writable(dir string) (shut func(), err error) {
	var st unix.Statfs_t
	if err := unix.Statfs(dir, &st); err != nil {
		return nil, err
	}
	if st.Flags&unix.ST_RDONLY == 0 {
		return func() {}, nil
	}
	remount := func(how string) error {
		out, err := exec.Command("mount", "-o", "remount,"+how, dir).CombinedOutput()
		if err != nil {
			return fmt.Errorf("mount -o remount,%s %s: %w: %s", how, dir, err, strings.TrimSpace(string(out)))
		}
		return nil
	}
	if err := remount("rw"); err != nil {
		return nil, err
	}
	return func() { remount("ro") }, nil //nolint:errcheck // the next boot makes it read-only
}
