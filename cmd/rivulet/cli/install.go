package cli

import (
	"fmt"
	"os"

	"github.com/spf13/cobra"

	"rivulet/appliance/config"
	"rivulet/appliance/lifetime/install"
	"rivulet/appliance/lifetime/upgrade"
	"rivulet/appliance/machine/host"
	"rivulet/systemd"
)

// removePackage is the command that removes a package, by its tool.
var removePackage = map[string]string{"dpkg": "sudo apt remove rivulet", "rpm": "sudo rpm -e rivulet"}

func newInstall(c *common) *cobra.Command {
	var o install.Options
	var noStart, check bool
	cmd := &cobra.Command{
		Use:   "install",
		Short: "install this program as a systemd service, started at boot, with a watchdog and the settings it needs",
		Long: "Copies this program to " + systemd.Binary + " and writes the unit and three settings of the system.\n" +
			"A package has program and unit: there it writes what is for the whole machine, if it is not there, and starts the service.\n" +
			"It can be repeated at any time, with this or a newer program. To remove it: rivulet uninstall",
		Args: noArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if o.Name != "" {
				if err := config.CheckName(o.Name); err != nil {
					return usagef("--name: %w; see: rivulet install --help", err)
				}
			}
			if c.dirs != defaultDirs {
				return usagef("install is for the folders %s and %s only; leave --state and --runtime out", defaultDirs.State, defaultDirs.Run)
			}
			if !install.HaveSystemd() {
				return install.ErrNoSystemd
			}
			if err := needRoot("install"); err != nil {
				return err
			}
			if err := upgrade.MayReplace(c.dirs.State); err != nil || check {
				return err
			}
			exe, err := os.Executable()
			if err != nil {
				return err
			}
			if o.Packaged = install.Packaged(exe); !o.Packaged {
				if by := install.PackageTool(cmd.Context()); by != "" {
					return fmt.Errorf("%s has installed Rivulet here from a package; give it the newer package, or remove that one first, its state stays: %s", by, removePackage[by])
				}
			}
			o.Executable, o.Start = exe, !noStart
			if err := runsByHand(cmd, c); err != nil && o.Packaged {
				fmt.Fprintln(cmd.ErrOrStderr(), err) // no reason for half a package
				o.Start = false
			} else if err != nil && !noStart {
				return err
			}
			steps, err := install.Install(cmd.Context(), o)
			if perr := printSteps(cmd, c, steps); err == nil {
				err = perr
			}
			return err
		},
	}
	f := cmd.Flags()
	f.StringVar(&o.Name, "name", "", "name of this cluster for its peers; default: the host name at the first start")
	f.BoolVar(&check, "check", false, "only say whether this program may run here: no version is on trial, and it can read the data")
	f.BoolVar(&noStart, "no-start", false, "do not start it now, only at boot")
	return withOutput(c, cmd)
}

// runsByHand returns an error if a supervisor other than the service's runs, which would prevent the service from
// starting.
func runsByHand(cmd *cobra.Command, c *common) error {
	if install.IsActive(cmd.Context()) {
		return nil
	}
	if pid, ok := host.Opener(c.dirs.State + "/state.db"); ok {
		return fmt.Errorf("rivulet runs here already, started by hand (pid %d), so the service could not start; "+
			"end that one first (its pods go on): kill %d", pid, pid)
	}
	return nil
}

func printSteps(cmd *cobra.Command, c *common, steps []install.Step) error {
	out := cmd.OutOrStdout()
	if c.forProgram() {
		return c.print(out, steps)
	}
	for _, s := range steps {
		mark := "as it was "
		if s.Changed {
			mark = "done      "
		}
		fmt.Fprintln(out, mark+s.What)
	}
	if len(steps) > 0 {
		fmt.Fprintln(out, "see how it comes up: rivulet status -w")
	}
	return nil
}
