package cli

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"time"

	"github.com/spf13/cobra"

	"rivulet/appliance/config"
	"rivulet/image/flash"
	"rivulet/image/signed"
)

func newFlash(c *common) *cobra.Command {
	var o struct {
		list, unsigned bool
		config         string
	}
	cmd := &cobra.Command{
		Use:   "flash IMAGE DEVICE",
		Short: "write a device image to a card or disk",
		Long: "IMAGE is a device image (.img or .img.zst) with its .sig beside it, and optionally its .bmap. Signature and content are\n" +
			"checked before anything is written; mounted disks and the system's own are refused. The command requires confirmation, writes,\n" +
			"and reads back what it wrote. All data on DEVICE are lost. --config copies a rivulet.yaml to it.",
		Args: func(cmd *cobra.Command, args []string) error {
			switch {
			case o.list && len(args) > 0:
				return usagef("flash --list takes no argument, yet was given %q; see: %s --help", args[0], cmd.CommandPath())
			case !o.list && len(args) != 2:
				return usagef("flash takes an image and a disk (see the disks: rivulet flash --list); see: %s --help", cmd.CommandPath())
			}
			return nil
		},
		RunE: func(cmd *cobra.Command, args []string) error {
			if o.list {
				return listDisks(cmd, c)
			}
			content, err := deviceConfig(o.config)
			if err != nil {
				return err
			}
			trust := flash.Trust{Unsigned: o.unsigned}
			if trust.Roots, err = signed.Roots(); err != nil && !errors.Is(err, signed.ErrNoRoots) {
				return err
			}
			return flashDisk(cmd, c, args[0], args[1], trust, content)
		},
	}
	f := cmd.Flags()
	f.BoolVar(&o.list, "list", false, "list the disks of this machine, with the reason if one is refused")
	yesFlag(cmd)
	f.BoolVar(&o.unsigned, "unsigned", false, "accept an image without a signature")
	f.StringVar(&o.config, "config", "", "a rivulet.yaml for the device's boot partition")
	return withOutput(c, cmd)
}

// deviceConfig reads the file for the device, and checks it as the device will: a device without a screen cannot show
// mistakes.
func deviceConfig(path string) ([]byte, error) {
	if path == "" {
		return nil, nil
	}
	f, err := os.Open(path)
	if err != nil {
		return nil, fmt.Errorf("%w; name a rivulet.yaml", err)
	}
	defer f.Close()
	raw, err := io.ReadAll(io.LimitReader(f, flash.MaxConfig+1))
	switch {
	case err != nil:
		return nil, fmt.Errorf("%w; name a rivulet.yaml", err)
	case len(raw) == 0 || len(raw) > flash.MaxConfig:
		return nil, fmt.Errorf("%s is empty or larger than %d bytes; name a rivulet.yaml", path, flash.MaxConfig)
	}
	if _, p := config.ParseCard(raw, config.Options{File: path}); len(p.Problems) > 0 {
		return nil, fmt.Errorf("%w (%d in all); correct it first, nothing was written", p.Problems[0], len(p.Problems))
	}
	return raw, nil
}

func listDisks(cmd *cobra.Command, c *common) error {
	disks, err := flash.Here().List()
	if err != nil {
		return err
	}
	return result(cmd, c, disks, func(out io.Writer, disks []flash.Disk) error {
		return table(out, "no disks; plug a card in and look again", "DEVICE\tSIZE\tKIND\tMODEL\tNOT WRITTEN BECAUSE", disks, func(d flash.Disk) []any {
			return []any{d.Path, flash.Bytes(d.Size), kind(d), d.Model, d.Refused}
		})
	})
}

func kind(d flash.Disk) string {
	if d.Removable {
		return "removable"
	}
	return "fixed"
}

func flashDisk(cmd *cobra.Command, c *common, path, device string, trust flash.Trust, content []byte) error {
	// The disk first: it is checked at once, the image takes longer.
	d, err := flash.Here().Disk(device)
	if err != nil {
		return err
	}
	if err := (&flash.Image{}).Fits(d); err != nil {
		return err
	}
	show := newMeter(cmd.ErrOrStderr())
	m, err := flash.Open(cmd.Context(), path, trust, show.progress)
	show.end()
	if err != nil {
		return err
	}
	if err := m.Fits(d); err != nil {
		return err
	}
	what := fmt.Sprintf("everything on %s (%s, %s, %s) is lost; %s is written to it", d.Path, d.Model, flash.Bytes(d.Size), kind(d), path)
	if !m.Signed {
		what += ", which NOBODY SIGNED"
	}
	if err := confirm(cmd, what); err != nil {
		return err
	}
	r, err := flash.Write(cmd.Context(), m, d, content, show.progress)
	show.end()
	if errors.Is(err, context.Canceled) {
		return fmt.Errorf("stopped by hand: %w", err)
	}
	if err != nil {
		return err
	}
	return resultf(cmd, c, r, "%s is written and was read back (%s in %s). Take it out, put it into the device and switch that on.\n",
		d.Path, flash.Bytes(r.Written), r.Took.Round(time.Second))
}
