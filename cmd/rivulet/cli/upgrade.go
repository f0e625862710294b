package cli

import (
	"context"
	"errors"
	"fmt"
	"os"
	"time"

	"github.com/spf13/cobra"

	"rivulet/appliance/api"
	"rivulet/appliance/lifetime/install"
	"rivulet/appliance/lifetime/slots"
	"rivulet/appliance/lifetime/upgrade"
	"rivulet/appliance/state/paths"
	"rivulet/fabric/changes"
	"rivulet/fabric/peer"
	"rivulet/systemd"
)

func newUpgrade(c *common) *cobra.Command {
	var o struct{ check, wait, now, cancel bool }
	r := upgrade.Request{}
	cmd := &cobra.Command{
		Use:   "upgrade [FILE]",
		Short: "upgrade to another version, and undo it automatically if it is not healthy",
		Long: "FILE is a release of rivulet, FILE.sig beside it; no network is needed. It is checked (signature, machine,\n" +
			"versions, space), the cluster's data are saved, and the new version must be healthy for a while: the API and the node ready, the\n" +
			"datastore writable, every former peer connected again. If it is not, the old version and its data\n" +
			"are restored. Pods continue all the time. On a flashed device FILE may be the bundle of a whole image: it is written beside\n" +
			"the running one, and the device restarts to try it. Without FILE the result of the last upgrade is shown.",
		Args: func(cmd *cobra.Command, args []string) error {
			if len(args) > 1 {
				return usagef("upgrade takes one file; see: %s --help", cmd.CommandPath())
			}
			return nil
		},
		RunE: func(cmd *cobra.Command, args []string) error {
			switch {
			case o.cancel:
				return cancelUpgrade(cmd, c)
			case len(args) == 0 && o.now:
				return begin(cmd, c, true)
			case len(args) == 0:
				return showUpgrade(cmd, c)
			}
			if r.Every < time.Second || r.Window < r.Every {
				return usagef("--window %s, --every %s: look at least once, and not more than once a second; see: rivulet upgrade --help", r.Window, r.Every)
			}
			r.File, r.CheckOnly = args[0], o.check
			return runUpgrade(cmd, c, r, o.now, o.wait)
		},
	}
	f := cmd.Flags()
	f.BoolVar(&o.check, "check", false, "only check the file")
	f.BoolVar(&o.now, "now", false, "even if pods use it")
	f.BoolVar(&o.wait, "wait", false, "wait for the end of the upgrade; exit code 1 if it was undone")
	f.BoolVar(&o.cancel, "cancel", false, "cancel a waiting upgrade, undo one on trial")
	f.BoolVar(&r.Older, "older", false, "permit a release that is older than what runs")
	f.DurationVar(&r.Window, "window", upgrade.DefaultWindow, "how long the new version must be healthy")
	f.DurationVar(&r.Every, "every", upgrade.DefaultEvery, "interval of checks")
	return withOutput(c, cmd)
}

func runUpgrade(cmd *cobra.Command, c *common, r upgrade.Request, now, wait bool) error {
	if os.Geteuid() != 0 {
		return errors.New("upgrade needs root; use: sudo rivulet upgrade FILE")
	}
	ctx := cmd.Context()
	r.State, r.Now = c.dirs.State, time.Now().UTC()
	runs, err := describeRunning(ctx, c, &r)
	if err != nil {
		return err
	}
	stage := upgrade.Stage
	if slots.IsBundle(r.File) {
		stage = upgrade.StageImage
		fmt.Fprintln(cmd.ErrOrStderr(), "a whole image: it is checked, written beside the one that runs, and read back; that takes minutes")
	}
	show := newMeter(cmd.ErrOrStderr())
	r.Progress = show.progress
	next, err := stage(ctx, r)
	show.end()
	if err != nil {
		return err
	}
	if r.CheckOnly {
		return resultf(cmd, c, next, "%s is good: rivulet %s with Kubernetes %s, signed by who may\n", r.File, next.Name, next.Kubernetes)
	}
	if by := install.PackageTool(ctx); by != "" && !slots.IsBundle(r.File) {
		fmt.Fprintf(cmd.ErrOrStderr(), "%s has installed %s from a package, which stays as it is and starts %s from now on; give %s no package that is older\n", by, systemd.PackageBinary, next.Name, by)
	}
	if !runs {
		return printf(cmd, "%s is staged; it is tried at the next start of rivulet\n", next.Name)
	}
	if err := begin(cmd, c, now); err != nil || !wait {
		return err
	}
	return waitUpgrade(ctx, cmd, c)
}

// describeRunning fills in the running version.
func describeRunning(ctx context.Context, c *common, r *upgrade.Request) (runs bool, err error) {
	var facts api.Facts
	err = api.Call(ctx, c.dirs.Run, "GET", "/v1/facts", nil, &facts)
	if errors.Is(err, api.ErrNotRunning) {
		if r.Running, err = os.Executable(); err != nil {
			return false, err
		}
		s, err := upgrade.Load(paths.Versions(c.dirs.State))
		if err == nil && s.Current != nil {
			d := upgrade.Device{State: c.dirs.State}
			r.Running = d.Binary(*s.Current)
		}
		return false, err
	}
	if err != nil {
		return false, err
	}
	r.Running, r.RunningBuild = facts.Executable, facts.BuildID
	st, err := api.Get(ctx, c.dirs.Run)
	if err != nil {
		return true, err
	}
	r.Paths = map[string]string{}
	add := func(id peer.ID, state peer.State, path string) {
		if state == peer.Connected {
			r.Peers, r.Paths[string(id)] = append(r.Peers, string(id)), path
		}
	}
	for _, p := range st.Peers {
		add(p.ID, p.State, p.Path)
	}
	for _, n := range st.Nodes {
		add(n.ID, n.State, n.Path)
	}
	return true, nil
}

// begin makes the supervisor restart into what is staged, unless pods hold it.
func begin(cmd *cobra.Command, c *common, now bool) error {
	var v api.Upgrade
	if err := api.Call(cmd.Context(), c.dirs.Run, "POST", "/v1/upgrade", api.UpgradeRequest{Now: now}, &v); err != nil {
		return err
	}
	if len(v.HeldBy) > 0 && !now {
		return resultf(cmd, c, v, "%s is staged and waits for %v to end; see: rivulet status\n", v.To, v.HeldBy)
	}
	return resultf(cmd, c, v, "%s is staged and begins now; see: rivulet upgrade\n", v.To)
}

func cancelUpgrade(cmd *cobra.Command, c *common) error {
	phase, err := upgrade.Cancel(c.dirs.State, time.Now().UTC())
	if err != nil {
		return err
	}
	return printf(cmd, "%s\n", map[upgrade.Phase]string{
		upgrade.Idle:      "there is no upgrade under way",
		upgrade.Staged:    "the upgrade is forgotten",
		upgrade.Trying:    "the version that is tried is undone at its next look",
		upgrade.Returning: "it is being undone already",
	}[phase])
}

func showUpgrade(cmd *cobra.Command, c *common) error {
	s, err := upgrade.Load(paths.Versions(c.dirs.State))
	if err != nil {
		return err
	}
	out := cmd.OutOrStdout()
	if c.forProgram() {
		return c.print(out, s)
	}
	if a := s.Attempt; a != nil {
		fmt.Fprintf(out, "%s → %s: %s", a.From.Name, a.Next.Name, s.Phase)
		switch {
		case s.Phase == upgrade.Trying && a.Begun.IsZero():
			fmt.Fprint(out, ", begins when it is started") // an image: when the loader starts its slot
		case s.Phase == upgrade.Trying:
			fmt.Fprintf(out, " until %s (start %d, ended by itself %d times)", a.Begun.Add(a.Window).Local().Format(time.TimeOnly), a.Starts, a.Crashes)
		}
		fmt.Fprintln(out)
	}
	switch o := s.Last; {
	case o == nil && s.Attempt == nil:
		_, err = fmt.Fprintln(out, "never upgraded; see: rivulet upgrade --help")
	case o != nil && o.OK:
		_, err = fmt.Fprintf(out, "%s → %s at %s\n", o.From, o.Version, o.At.Local().Format(time.DateTime))
	case o != nil:
		_, err = fmt.Fprintf(out, "%s was tried and given up at %s, %s runs: %s\n", o.Version, o.At.Local().Format(time.DateTime), o.From, o.Reason)
		if o.Aside != "" {
			fmt.Fprintf(out, "what it wrote is in %s\n", o.Aside)
		}
	}
	return err
}

// waitUpgrade follows the upgrade to its end.
func waitUpgrade(ctx context.Context, cmd *cobra.Command, c *common) error {
	for {
		s, err := upgrade.Load(paths.Versions(c.dirs.State))
		if err != nil {
			return err
		}
		if s.Phase == upgrade.Idle && s.Last != nil {
			if err := showUpgrade(cmd, c); err != nil {
				return err
			}
			if !s.Last.OK {
				return &exitError{code: exitFailed}
			}
			return nil
		}
		if !changes.Wait(ctx, time.Second) {
			return ctx.Err()
		}
	}
}
