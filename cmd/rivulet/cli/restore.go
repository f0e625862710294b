package cli

import (
	"cmp"
	"errors"
	"fmt"
	"io"
	"time"

	"github.com/spf13/cobra"

	"rivulet/appliance/api"
	"rivulet/appliance/config"
	"rivulet/appliance/lifetime/backup"
	"rivulet/appliance/version"
)

func newRestore(c *common) *cobra.Command {
	var o backup.Options
	var passphrase string
	cmd := &cobra.Command{
		Use:   "restore FILE|-",
		Short: "restore a cluster from a backup, on this or other hardware",
		Long: "Checks the whole backup first, then sets the present state aside (after confirmation, or --yes) and replaces it. The node keeps the name\n" +
			"in the backup, so that pods and volumes match; --name changes only the name for peers. Rivulet must be stopped.\n" +
			"The original device must never run again beside the restored one: both would be the same cluster.",
		Args: oneFile,
		RunE: func(cmd *cobra.Command, args []string) error {
			if err := config.CheckName(o.Name); err != nil {
				return usagef("--name: %w; see: rivulet restore --help", err)
			}
			if _, err := api.Get(cmd.Context(), c.dirs.Run); !errors.Is(err, api.ErrNotRunning) {
				return errors.New("rivulet is running here; stop it first (pods go on meanwhile): systemctl stop rivulet")
			}
			in, err := input(cmd, args[0], "name the file of `rivulet backup`")
			if err != nil {
				return err
			}
			defer in.Close()
			return restore(cmd, c, o, in, passphrase)
		},
	}
	f := cmd.Flags()
	yesFlag(cmd)
	f.StringVar(&o.Name, "name", "", "another name of the cluster for its peers; the node keeps its name in the backup")
	f.StringVar(&passphrase, "passphrase-file", "", "file with the passphrase of an encrypted backup")
	return withOutput(c, cmd)
}

func restore(cmd *cobra.Command, c *common, o backup.Options, in io.Reader, passphrase string) (err error) {
	if o.Passphrase, err = readPassphrase(passphrase); err != nil {
		return err
	}
	o.Kubernetes, o.Now = version.Kubernetes(), time.Now()
	end := busy("restoring")
	r, err := backup.Restore(cmd.Context(), in, backup.DefaultPaths(c.dirs.State), o)
	end()
	if errors.Is(err, backup.ErrExists) { // nothing was read yet
		if err := confirm(cmd, "put the cluster of the backup in the place of the one that is here", "that one is set aside, and kept, in "+c.dirs.State); err != nil {
			return err
		}
		o.Over, end = true, busy("restoring")
		r, err = backup.Restore(cmd.Context(), in, backup.DefaultPaths(c.dirs.State), o)
		end()
	}
	if err != nil {
		return err
	}
	noteBackup(cmd, c, r.Manifest.Created)
	if c.forProgram() {
		return c.print(cmd.OutOrStdout(), r)
	}
	m, out := r.Manifest, cmd.OutOrStdout()
	fmt.Fprintf(out, "restored: cluster %s (id %s, node %s) as of %s\n", cmp.Or(o.Name, m.Name), m.ID, m.Node, m.Created.Format(time.RFC3339))
	if r.Aside != "" {
		fmt.Fprintf(out, "what was here before is in %s\n", r.Aside)
	}
	if m.SQL != "" {
		fmt.Fprintf(out, "the cluster's objects are what %s has: restore that as well, if it is to be as of then, before you start this device\n", m.SQL)
	}
	if !m.Volumes {
		fmt.Fprintln(out, "local volumes were not in the backup: those that are missing here start empty")
	}
	if m.Skips(o.Kubernetes) {
		fmt.Fprintf(out, "the backup is of Kubernetes %s, this is %s: versions in between are left out, look well whether everything is there\n", m.Kubernetes, o.Kubernetes)
	}
	return printf(cmd, "start it: systemctl start rivulet (or: rivulet run). The device of the backup must not run any more: both would be the same cluster\n")
}
