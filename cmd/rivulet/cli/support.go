package cli

import (
	"errors"
	"fmt"
	"io"
	"os"
	"strings"
	"time"

	"filippo.io/age"
	"github.com/spf13/cobra"

	"rivulet/appliance/diagnose/redact"
	"rivulet/appliance/diagnose/support"
	"rivulet/appliance/state/paths"
)

func newSupport(c *common) *cobra.Command {
	var file string
	var recipients []string
	cmd := &cobra.Command{
		Use:   "support",
		Short: "write an archive for the diagnosis of a fault, without secrets",
		Long: "It also works without a running rivulet. Keys, tokens and passwords are removed; names and addresses are not.\n" +
			"Exit code 0: written (index.txt in it lists missing parts); 1: not written.",
		Args: noArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if file == "json" || file == "yaml" || file == "wide" {
				return usagef("-o is the name of the archive here; if you mean a file called %s, write -o ./%s; see: %s --help", file, file, cmd.CommandPath())
			}
			to, err := parseRecipients(recipients)
			if err != nil {
				return err
			}
			now := time.Now()
			if file == "" {
				file = "rivulet-support-" + now.UTC().Format("20060102-150405") + ".tar.gz"
				if len(to) > 0 {
					file += ".age"
				}
			}
			self, err := os.Executable()
			if err != nil {
				return err
			}
			d := support.Device{State: c.dirs.State, Run: c.dirs.Run, ConfigDir: paths.Config, Executable: self, Doctor: here(c)}
			var missing []string
			write := func(w io.Writer) error {
				defer busy("collecting")()
				var err error
				missing, err = support.Write(cmd.Context(), w, now, redact.New(d.Secrets()), d.Parts())
				return err
			}
			if file == "-" {
				err = encrypted(raw(cmd.OutOrStdout()), to, write)
			} else if _, there := os.Lstat(file); there == nil {
				err = fmt.Errorf("%s is there already; give another name with -o", file)
			} else {
				err = toFile(file, "give a file on another disk with -o, or -o - and send it elsewhere", func(w io.Writer) error { return encrypted(w, to, write) })
			}
			if err != nil {
				return err
			}
			tell := cmd.ErrOrStderr()
			for _, m := range missing {
				fmt.Fprintln(tell, "not in it: "+m)
			}
			if file != "-" {
				fmt.Fprintf(cmd.OutOrStdout(), "%s\nLook at it before you give it away: it has no keys and passwords, but names and addresses.\n", file)
			}
			return nil
		},
	}
	cmd.Flags().StringVarP(&file, "output", "o", "", "the file, - for standard output; default: rivulet-support-<time>.tar.gz here")
	cmd.Flags().StringSliceVar(&recipients, "encrypt", nil, "encrypt for this age recipient (age1…)")
	return cmd
}

func parseRecipients(names []string) (to []age.Recipient, err error) {
	for _, n := range names {
		r, err := age.ParseX25519Recipient(strings.TrimSpace(n))
		if err != nil {
			return nil, usagef("--encrypt %.80q is no age recipient (%w); it begins with age1; see: rivulet support --help", n, err)
		}
		to = append(to, r)
	}
	return to, nil
}

func encrypted(w io.Writer, to []age.Recipient, write func(io.Writer) error) error {
	if len(to) == 0 {
		return write(w)
	}
	a, err := age.Encrypt(w, to...)
	if err != nil {
		return err
	}
	return errors.Join(write(a), a.Close())
}
