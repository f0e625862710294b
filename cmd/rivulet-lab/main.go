// Command rivulet-lab simulates several devices on one machine: see package rivulet/test/harness/lab. It is for demos and tests
// and is never shipped.
package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"os/signal"
	"strings"
	"syscall"
	"text/tabwriter"
	"time"

	"github.com/spf13/cobra"

	"rivulet/test/harness/lab"
)

func main() {
	ctx, cancel := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer cancel()
	if err := root().ExecuteContext(ctx); err != nil {
		var exit *exec.ExitError
		if errors.As(err, &exit) {
			os.Exit(exit.ExitCode())
		}
		var usage *usageError
		if errors.As(err, &usage) || strings.HasPrefix(err.Error(), "unknown command") {
			fmt.Fprintf(os.Stderr, "rivulet-lab: %v; see: rivulet-lab --help\n", err)
			os.Exit(2)
		}
		fmt.Fprintln(os.Stderr, "rivulet-lab: "+strings.TrimPrefix(err.Error(), "lab: "))
		os.Exit(1)
	}
}

// usageError is a mistake on the command line: exit code 2.
type usageError struct{ error }

// usage makes cobra's errors about arguments usage errors.
func usage(check cobra.PositionalArgs) cobra.PositionalArgs {
	return func(cmd *cobra.Command, args []string) error {
		if err := check(cmd, args); err != nil {
			return &usageError{fmt.Errorf("%s: %w", cmd.Name(), err)}
		}
		return nil
	}
}

var dir string

func root() *cobra.Command {
	cmd := &cobra.Command{
		Use: "rivulet-lab", Short: "several Rivulet devices on this machine",
		SilenceErrors: true, SilenceUsage: true,
		Args: cobra.NoArgs, RunE: func(cmd *cobra.Command, _ []string) error { return cmd.Help() },
	}
	cmd.SetFlagErrorFunc(func(_ *cobra.Command, err error) error { return &usageError{err} })
	folder := os.Getenv("RIVULET_LAB")
	if folder == "" {
		folder = lab.DefaultDir
	}
	cmd.PersistentFlags().StringVar(&dir, "dir", folder, "the lab's folder, on a real file system [$RIVULET_LAB]")
	cmd.AddCommand(up(), status(), execute(), kubectl(), logs(),
		verb("cut A [B]", "stop traffic between two devices, or take A's cable out", cobra.RangeArgs(1, 2), func(_ context.Context, l *lab.Lab, args []string) error {
			return l.Cut(args[0], append(args, "")[1])
		}),
		verb("heal", "undo every cut", cobra.NoArgs, func(_ context.Context, l *lab.Lab, _ []string) error { return l.Heal() }),
		verb("renumber A", "give A another LAN address, as DHCP would", cobra.ExactArgs(1), func(ctx context.Context, l *lab.Lab, args []string) error {
			return with(l, args[0], func(d *lab.Device) error {
				address, err := d.Renumber(ctx)
				if err == nil {
					fmt.Printf("%s is at %s now\n", d.Name, address)
				}
				return err
			})
		}),
		verb("kill A supervisor|engine|tunnel|power", "end a process without warning, or take the power", cobra.ExactArgs(2), func(ctx context.Context, l *lab.Lab, args []string) error {
			return with(l, args[0], func(d *lab.Device) error { return d.Kill(ctx, args[1]) })
		}),
		verb("start A", "switch A on, or start rivulet on it", cobra.ExactArgs(1), func(ctx context.Context, l *lab.Lab, args []string) error {
			return with(l, args[0], func(d *lab.Device) error { return d.Start(ctx) })
		}),
		verb("stop A", "end rivulet on A in an orderly way", cobra.ExactArgs(1), func(ctx context.Context, l *lab.Lab, args []string) error {
			return with(l, args[0], func(d *lab.Device) error { return d.Stop(ctx) })
		}),
		&cobra.Command{Use: "down", Short: "end the lab and remove all of it, half made or crashed too", Args: cobra.NoArgs,
			RunE: func(cmd *cobra.Command, _ []string) error {
				err := lab.Down(cmd.Context(), dir)
				if errors.Is(err, lab.ErrNoLab) {
					fmt.Println("there is no lab in " + dir)
					return nil
				}
				return err
			}},
	)
	return cmd
}

func verb(use, short string, args cobra.PositionalArgs, f func(context.Context, *lab.Lab, []string) error) *cobra.Command {
	return &cobra.Command{Use: use, Short: short, Args: usage(args), RunE: func(cmd *cobra.Command, args []string) error {
		l, err := lab.Open(dir)
		if err != nil {
			return err
		}
		return f(cmd.Context(), l, args)
	}}
}

func with(l *lab.Lab, name string, f func(*lab.Device) error) error {
	d, err := l.Device(name)
	if err != nil {
		return err
	}
	return f(d)
}

func up() *cobra.Command {
	o := lab.Options{}
	var wait, clusters, beside string
	var env []string
	var timeout time.Duration
	var diskMiB, memoryMiB int64
	cmd := &cobra.Command{Use: "up", Short: "make a lab", Long: "Makes a lab.\n\n" + besides(), Args: cobra.NoArgs, RunE: func(cmd *cobra.Command, _ []string) error {
		if wait != "" && wait != "ready" && wait != "peered" {
			return &usageError{fmt.Errorf("--wait %s is not known: use ready or peered", wait)}
		}
		if clusters != "" {
			if cmd.Flags().Changed("devices") {
				return &usageError{errors.New("--clusters says how many devices there are: leave out --devices")}
			}
			var err error
			if o.Clusters, err = lab.ParseClusters(clusters); err != nil {
				return &usageError{fmt.Errorf("--clusters: %s", strings.TrimPrefix(err.Error(), "lab: "))}
			}
		}
		var err error
		if o.With, err = lab.ParseWith(beside); err != nil {
			return &usageError{fmt.Errorf("--with: %s", strings.TrimPrefix(err.Error(), "lab: "))}
		}
		o.Dir, o.Env, o.Disk, o.Memory = dir, map[string][]string{}, diskMiB<<20, memoryMiB<<20
		for _, e := range env {
			name, rest, ok := strings.Cut(e, ":")
			if !ok || strings.Contains(name, "=") {
				name, rest = "", e // for all devices
			}
			if !strings.Contains(rest, "=") {
				return &usageError{fmt.Errorf("--env %s: write KEY=VALUE, or a:KEY=VALUE for device a only", e)}
			}
			o.Env[name] = append(o.Env[name], rest)
		}
		begun := time.Now()
		o.Tell = func(format string, args ...any) {
			fmt.Printf("%5.1f s  %s\n", time.Since(begun).Seconds(), fmt.Sprintf(format, args...))
		}
		ctx, cancel := context.WithTimeout(cmd.Context(), timeout)
		defer cancel()
		l, err := lab.Up(ctx, o)
		if err != nil {
			return err
		}
		if err := l.Join(ctx, o.Clusters); err != nil {
			return err
		}
		return waitFor(ctx, l, wait, o)
	}}
	f := cmd.Flags()
	f.IntVar(&o.Devices, "devices", 3, "how many; they are called a, b, c …")
	f.StringVar(&clusters, "clusters", "", "clusters of several devices instead, each as NAME=1+WORKERS, as a=1+2,b=1: devices a, a1, a2 and b, where a1 and a2 join a")
	f.StringVar(&o.Binary, "binary", lab.Beside(), "the rivulet to run; by default the one beside this program")
	f.Int64Var(&diskMiB, "disk", 0, "MiB of a disk of its own for each device: it can be full, and a power cut loses what was not synced; 0: a folder")
	f.Int64Var(&memoryMiB, "memory", 0, "MiB of RAM that each device has and believes to have; 0: all of the host's")
	f.Float64Var(&o.CPUs, "cpus", 0, "cores of the host's that each device may use, all of it together, e.g. 1 or 0.5; 0: all")
	f.StringVar(&beside, "with", "", "NAME[,NAME…] or all: what other programs and routers do to each device's network, as above")
	f.StringVar(&wait, "wait", "", "ready: until pods can run and all nodes are Ready; peered: until every cluster is a virtual node of every other")
	f.StringArrayVar(&env, "env", nil, "KEY=VALUE for rivulet run on all devices, a:KEY=VALUE on device a only")
	f.DurationVar(&timeout, "timeout", 3*time.Minute, "give up after")
	return cmd
}

// besides explains what --with takes.
func besides() string {
	var b strings.Builder
	b.WriteString("What devices have beside Rivulet (--with), N is 11 on a, 12 on b …:\n\n")
	for _, o := range lab.Others() {
		fmt.Fprintf(&b, "  %-11s %s (%s)\n", o.Name, o.Does, o.From)
	}
	return b.String()
}

func waitFor(ctx context.Context, l *lab.Lab, wait string, o lab.Options) error {
	devices, err := l.Devices()
	if err != nil || wait == "" {
		return err
	}
	o.Tell("waiting for k3s on each device, half a minute or so")
	for _, d := range devices {
		if err := d.WaitReady(ctx); err != nil {
			return err
		}
		o.Tell("%s is ready", d.Name)
	}
	clusters := o.Clusters
	if clusters == nil {
		for _, d := range devices {
			clusters = append(clusters, lab.Cluster{Server: d.Name})
		}
	}
	for _, c := range clusters {
		server, err := l.Device(c.Server)
		if err != nil {
			return err
		}
		if err := server.WaitNodes(ctx, c.Devices()...); err != nil {
			return err
		}
		if len(c.Workers) > 0 {
			o.Tell("%s has %d nodes, all Ready", c.Server, len(c.Devices()))
		}
	}
	if wait != "peered" {
		return nil
	}
	for _, c := range clusters {
		server, err := l.Device(c.Server)
		if err != nil {
			return err
		}
		var peers []string
		for _, other := range clusters {
			if other.Server != c.Server {
				peers = append(peers, other.Server)
			}
		}
		if err := server.WaitPeers(ctx, peers...); err != nil {
			return err
		}
		o.Tell("%s has %d virtual nodes", c.Server, len(peers))
	}
	return nil
}

func status() *cobra.Command {
	return verb("status", "what each device says of itself", cobra.NoArgs, func(ctx context.Context, l *lab.Lab, _ []string) error {
		devices, err := l.Devices()
		if err != nil {
			return err
		}
		w := tabwriter.NewWriter(os.Stdout, 0, 0, 2, ' ', 0)
		fmt.Fprintln(w, "DEVICE\tSTATE\tPEERS\tVIRTUAL NODES\tPODS HOME/AWAY/TENANTS")
		for _, d := range devices {
			st, err := d.Status(ctx)
			if err != nil {
				fmt.Fprintf(w, "%s\t%s\t\t\t\n", d.Name, strings.TrimPrefix(err.Error(), "lab: "))
				continue
			}
			state := "ready"
			if !st.Ready {
				state = st.Waiting
			}
			if st.Member != nil {
				state += ", worker of " + st.Member.Cluster
			}
			var peers, nodes []string
			for _, p := range st.Peers {
				peers = append(peers, p.Name+" "+p.State)
			}
			for _, v := range st.VirtualNodes {
				if v.Ready {
					nodes = append(nodes, v.Name)
				}
			}
			fmt.Fprintf(w, "%s\t%s\t%s\t%s\t%d/%d/%d\n", d.Name, state, strings.Join(peers, ", "), strings.Join(nodes, " "),
				st.Pods.Home, st.Pods.Away, st.Pods.Tenants)
		}
		return w.Flush()
	})
}

// attached runs a program in a device on this terminal.
func attached(ctx context.Context, name string, args []string) error {
	l, err := lab.Open(dir)
	if err != nil {
		return err
	}
	d, err := l.Device(name)
	if err != nil {
		return err
	}
	cmd, err := d.Command(ctx, args...)
	if err != nil {
		return err
	}
	cmd.Stdin, cmd.Stdout, cmd.Stderr = os.Stdin, os.Stdout, os.Stderr
	// Ctrl-C is for the program inside, which receives it from the terminal.
	cmd.Cancel = func() error { return nil }
	return cmd.Run()
}

func execute() *cobra.Command {
	return &cobra.Command{Use: "exec A -- PROGRAM ...", Short: "run a program inside a device", Args: usage(cobra.MinimumNArgs(2)),
		RunE: func(cmd *cobra.Command, args []string) error { return attached(cmd.Context(), args[0], args[1:]) }}
}

func kubectl() *cobra.Command {
	return &cobra.Command{Use: "kubectl A -- ...", Short: "run a device's kubectl", Args: usage(cobra.MinimumNArgs(2)),
		RunE: func(cmd *cobra.Command, args []string) error {
			return attached(cmd.Context(), args[0], append([]string{"rivulet", "kubectl"}, args[1:]...))
		}}
}

func logs() *cobra.Command {
	var follow bool
	cmd := verb("logs A", "what rivulet run wrote on a device", cobra.ExactArgs(1), func(ctx context.Context, l *lab.Lab, args []string) error {
		return with(l, args[0], func(d *lab.Device) error {
			tail := []string{"-n", "+1"}
			if follow {
				tail = append(tail, "-f")
			}
			c := exec.CommandContext(ctx, "tail", append(tail, d.Log())...)
			c.Stdout, c.Stderr = os.Stdout, os.Stderr
			return c.Run()
		})
	})
	cmd.Flags().BoolVarP(&follow, "follow", "f", false, "go on until Ctrl-C")
	return cmd
}
