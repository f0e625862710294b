package cli

import (
	"context"
	"errors"
	"fmt"
	"os"

	"github.com/spf13/cobra"

	"rivulet/appliance/diagnose/doctor"
	"rivulet/appliance/lifetime/cleanup"
	"rivulet/appliance/lifetime/install"
	"rivulet/appliance/state/paths"
	"rivulet/systemd"
)

func newUninstall(c *common, engineName string) *cobra.Command {
	var purge bool
	cmd := &cobra.Command{
		Use:   "uninstall",
		Short: "stop everything and remove the service, pods, rules, routes, mounts and files",
		Long: "The state (cluster, identity, peers) stays in the state folder for another install; --purge removes it, too.\n" +
			"It can be repeated, for example if something could not be removed, and works where Rivulet was never installed.",
		Args: noArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if err := needRoot("uninstall"); err != nil {
				return err
			}
			question, what := "remove Rivulet from this device", "all its pods end. "+c.dirs.State+" stays"
			if purge {
				question, what = question+", with all its data and its identity", "all its pods end. "+c.dirs.State+" is deleted"
			}
			if err := confirm(cmd, question, what+c.whatThereIs(cmd.Context())); err != nil {
				return err
			}
			var told []string
			if purge { // this cluster will not return
				told = goodbye(cmd.Context(), c)
			}
			r := end(cmd.Context(), c, engineName)
			sayTold(&r, told)
			if r.Running != 0 {
				return printCleanup(cmd, c, r)
			}
			by := install.PackageTool(cmd.Context())
			exe, err := os.Executable()
			if err != nil {
				return err
			}
			removed, err := install.Remove(cmd.Context(), by != "" || install.Packaged(exe))
			if by != "" {
				r.Kept = append(r.Kept, systemd.PackageBinary+" and its unit are the package's, and go with it: "+removePackage[by])
			}
			r.Removed = append(r.Removed, removed...)
			if err != nil {
				r.Left = append(r.Left, err.Error())
			}
			for file, before := range doctor.Changed() {
				r.Kept = append(r.Kept, fmt.Sprintf("%s has words that doctor --fix has added; as it was before: sudo mv %s %s", file, before, file))
			}
			if purge {
				wipe(&r, c.dirs.State, paths.Config)
			}
			return printCleanup(cmd, c, r)
		},
	}
	cmd.Flags().BoolVar(&purge, "purge", false, "also remove the state: cluster, volumes, identity, peers, configuration")
	yesFlag(cmd)
	return withOutput(c, cmd)
}

// end stops the service, if there is one, ends all processes of Rivulet and removes its traces.
func end(ctx context.Context, c *common, engineName string) cleanup.Report {
	var stop error
	if install.HaveSystemd() {
		stop = install.Stop(ctx)
	}
	r := cleanup.Run(ctx, cleanup.Config{State: c.dirs.State, Run: c.dirs.Run, EngineName: engineName})
	if stop != nil {
		r.Left = append(r.Left, stop.Error()+"; look at: systemctl status rivulet")
	}
	return r
}

// wipe removes whole folders.
func wipe(r *cleanup.Report, folders ...string) {
	for _, dir := range folders {
		if _, err := os.Lstat(dir); err != nil {
			continue
		}
		if err := cleanup.RemoveAll(dir); err != nil {
			r.Left = append(r.Left, err.Error())
			continue
		}
		r.Removed = append(r.Removed, dir)
	}
}

func printCleanup(cmd *cobra.Command, c *common, r cleanup.Report) error {
	out := cmd.OutOrStdout()
	if c.forProgram() {
		if err := c.print(out, r); err != nil {
			return err
		}
	} else {
		for _, what := range r.Removed {
			fmt.Fprintln(out, "removed   "+what)
		}
		for _, what := range r.Kept {
			fmt.Fprintln(out, "kept      "+what)
		}
		for _, what := range r.Left {
			fmt.Fprintln(out, "LEFT      "+what)
		}
		if len(r.Removed)+len(r.Kept)+len(r.Left) == 0 {
			fmt.Fprintln(out, "nothing was there")
		}
	}
	if len(r.Left) > 0 {
		return &exitError{exitFailed, errors.New("not everything could be removed; see above, then run this again")}
	}
	return nil
}
