package cli

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"strings"

	"github.com/spf13/cobra"

	"rivulet/appliance/api"
	"rivulet/appliance/config/fixed"
	"rivulet/appliance/diagnose/doctor"
	"rivulet/appliance/machine/host"
)

func newDoctor(c *common) *cobra.Command {
	var fix, list bool
	var only []string
	cmd := &cobra.Command{
		Use:   "doctor",
		Short: "check this device, with a cure for each problem",
		Long: "Exit code 0: nothing fails (there may be warnings); 1: something fails; 2: bad flags.\n" +
			"It works without a running rivulet, and checks more as root. Every probe: rivulet docs doctor.",
		Args: func(cmd *cobra.Command, args []string) error {
			if _, err := doctor.Find(args); len(args) > 0 && err == nil { // the names in brackets of status
				return usagef("one problem is looked at like this: rivulet doctor --only %s; see: %s --help", strings.Join(args, ","), cmd.CommandPath())
			}
			return noArgs(cmd, args)
		},
		RunE: func(cmd *cobra.Command, _ []string) error {
			asked := doctor.Probes()
			if len(only) > 0 {
				var err error
				if asked, err = doctor.Find(only); err != nil {
					return usagef("%w, and rivulet doctor --help", err)
				}
			}
			if list {
				return listProbes(cmd.OutOrStdout(), c, asked)
			}
			return examine(cmd.Context(), cmd.OutOrStdout(), c, asked, only, fix)
		},
	}
	cmd.AddCommand(newDoctorPeer(c))
	f := cmd.Flags()
	f.BoolVar(&fix, "fix", false, "also carry out safe fixes")
	f.StringSliceVar(&only, "only", nil, "only these probes and problems, by code")
	f.BoolVar(&list, "list", false, "only list the probes")
	return withOutput(c, cmd)
}

func listProbes(out io.Writer, c *common, asked []doctor.Probe) error {
	type line struct {
		Name  string `json:"name"`
		Title string `json:"title"`
	}
	var lines []line
	for _, p := range asked {
		lines = append(lines, line{p.Name(), p.Title})
	}
	if c.forProgram() {
		return c.print(out, lines)
	}
	for _, l := range lines {
		fmt.Fprintf(out, "%-18s  %s\n", l.Name, l.Title)
	}
	return nil
}

// examined is the output of -o json.
type examined struct {
	doctor.Report
	Fixed []doctor.Fixed `json:"fixed,omitempty"`
}

func examine(ctx context.Context, out io.Writer, c *common, asked []doctor.Probe, only []string, fix bool) error {
	look := func() doctor.Report {
		defer busy("looking at the device")()
		rep := doctor.Run(ctx, here(c), asked)
		st, err := api.Get(ctx, c.dirs.Run)
		rep.Add(st.Health, only, err)
		return rep
	}
	result := examined{Report: look()}
	if fix {
		if os.Geteuid() != 0 {
			return errors.New("doctor --fix needs root; use: sudo rivulet doctor --fix")
		}
		result.Fixed = doctor.Repair(ctx, result.Report, func(name, says string) {
			if c.output == "" {
				fmt.Fprintf(out, "FIX   %s: %s\n", name, says)
			}
		})
		if len(result.Fixed) > 0 {
			result.Report = look()
		}
	}
	if ctx.Err() != nil {
		return errors.New("doctor was interrupted")
	}
	// A running supervisor runs its probes again, so that status shows the same.
	api.Call(ctx, c.dirs.Run, http.MethodPost, "/v1/doctor", nil, nil) //nolint:errcheck // without it the status is refreshed later
	var err error
	if c.forProgram() {
		err = c.print(out, result)
	} else {
		err = printReport(out, result)
	}
	if err == nil && result.Count(doctor.Fail) > 0 {
		err = &exitError{code: exitFailed}
	}
	return err
}

func here(c *common) *doctor.Env {
	host.CompletePath()
	if own, _, err := fixed.Of(c.dirs.State); err == nil {
		fixed.Use(own)
	}
	return doctor.Here(c.dirs.State, c.dirs.Run)
}

func printReport(out io.Writer, r examined) error {
	reboot := false
	for _, f := range r.Fixed {
		if f.Error != "" {
			fmt.Fprintf(out, "FIX   %s did not work: %s\n", f.Name, oneLine(f.Error))
		}
		reboot = reboot || f.Reboot
	}
	for _, f := range r.Findings {
		fmt.Fprintf(out, "%-5s %-18s %s: %s\n", strings.ToUpper(string(f.Status)), f.Name, f.Title, oneLine(f.Text))
		if f.Cure != "" && f.Status != doctor.Pass {
			fmt.Fprintf(out, "      %-18s → %s\n", "", f.Cure)
		}
		if f.Fix != "" && len(r.Fixed) == 0 {
			fmt.Fprintf(out, "      %-18s   doctor --fix %s\n", "", f.Fix)
		}
	}
	fmt.Fprintf(out, "\n%d passed, %d with a warning, %d failed, %d could not be asked\n",
		r.Count(doctor.Pass), r.Count(doctor.Warn), r.Count(doctor.Fail), r.Count(doctor.Skip))
	if reboot {
		fmt.Fprintln(out, "Reboot for the fixes to take effect.")
	}
	return nil
}
