package cli

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"

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
			note, err := firstBoot(firstboot.At(dev.Root, dev.Boot))
			if err != nil {
				return err
			}
			for _, p := range note.All() {
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
