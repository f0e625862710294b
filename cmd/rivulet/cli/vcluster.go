package cli

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net/http"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"time"

	"github.com/spf13/cobra"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	"k8s.io/client-go/tools/clientcmd"
	clientcmdapi "k8s.io/client-go/tools/clientcmd/api"

	"rivulet/appliance/api"
	"rivulet/appliance/state/archive"
	"rivulet/appliance/vcluster"
)

func newVCluster(c *common) *cobra.Command {
	return group(&cobra.Command{
		Use:   "vcluster",
		Short: "virtual clusters: each has its own control plane, which sleeps when unused",
		Long: "A virtual cluster has its own API server, datastore and administrator. Its process can access only its own folder of this device.\n" +
			"When it is unused, the process ends; the next request starts it again, and waits for it. Its pods run on this device, within `vclusters` of the configuration, and on peers that --targets names; they continue meanwhile.",
	}, newVClusterCreate(c), newVClusterList(c), newVClusterDescribe(c), newVClusterConnect(c), newVClusterKubeconfig(c), newVClusterSet(c),
		newVClusterAct(c, "sleep", "is asleep", "end its control plane now, in use or not; the next request starts it again"),
		newVClusterAct(c, "pause", "is paused", "stop its control plane until it is resumed; requests do not wake it"),
		newVClusterAct(c, "resume", "is resumed", "start a paused control plane again"),
		newVClusterSnapshot(c), newVClusterRestore(c), newVClusterDelete(c), newVClusterLogs(c))
}

// vclusterTimeout is for requests that wait for a control plane.
const vclusterTimeout = 4 * time.Minute

func requestVCluster(ctx context.Context, c *common, method, path string, in, out any) error {
	defer busy("waiting for the virtual cluster")()
	return api.CallWithin(ctx, vclusterTimeout, c.dirs.Run, method, "/v1/vclusters"+path, in, out)
}

func inPath(name string) string { return "/" + url.PathEscape(name) }

func newVClusterCreate(c *common) *cobra.Command {
	f := vclusterFlags{like: "256Mi"}
	file := ""
	cmd := &cobra.Command{
		Use: "create NAME | -f FILE|-", Short: "create a virtual cluster, or those of a file, and wait until they are ready",
		Long: "A file has objects of kind VirtualCluster or Course; what is there already is changed. See: rivulet docs crds.",
		Args: func(cmd *cobra.Command, args []string) error {
			if file == "" {
				return oneName(cmd, args)
			}
			if len(args) > 0 {
				return usagef("the names are in the file; leave %.40q out, see: %s --help", args[0], cmd.CommandPath())
			}
			for _, name := range []string{"sleep", "watch-keeps-awake", "memory", "datastore", "quota", "guarantee", "targets"} {
				if cmd.Flags().Changed(name) {
					return usagef("the settings are in the file; leave --%s out, see: %s --help", name, cmd.CommandPath())
				}
			}
			return nil
		},
		RunE: func(cmd *cobra.Command, args []string) error {
			if file != "" {
				return createFrom(cmd, c, file)
			}
			to, err := f.read(cmd, true)
			if err != nil {
				return err
			}
			spec := vcluster.Spec{Name: args[0], Sleep: *to.Sleep, WatchKeepsAwake: *to.WatchKeepsAwake, Memory: *to.Memory, Datastore: *to.Datastore, Quota: *to.Quota, Guarantee: *to.Guarantee, Targets: *to.Targets}
			if err := spec.Check(); err != nil {
				return &usageError{err}
			}
			var v vcluster.View
			if err := requestVCluster(cmd.Context(), c, http.MethodPost, "", spec, &v); err != nil {
				return err
			}
			return resultf(cmd, c, v, "%s\nnext: rivulet vcluster connect %s -- kubectl get namespaces\n%s", usable(v), v.Name, moreAwake(v))
		},
	}
	f.register(cmd)
	cmd.Flags().StringVarP(&file, "filename", "f", "", "a file with objects, or - for standard input")
	return withOutput(c, cmd)
}

// vclusterFlags are the settings of a virtual cluster.
type vclusterFlags struct {
	sleep                                        time.Duration
	watchKeepsAwake                              bool
	memory, datastore, quota, guarantee, targets string
	like                                         string // an example for --datastore
}

func (f *vclusterFlags) register(cmd *cobra.Command) {
	cmd.Flags().DurationVar(&f.sleep, "sleep", vcluster.DefaultSleep, "time without use after which its control plane ends; 0 is never")
	cmd.Flags().BoolVar(&f.watchKeepsAwake, "watch-keeps-awake", false, "watches from outside are use as long as they last; otherwise they end when it falls asleep")
	cmd.Flags().StringVar(&f.memory, "memory", "512Mi", "limit of its control plane's memory")
	cmd.Flags().StringVar(&f.datastore, "datastore", "256Mi", "limit of its datastore; a full one accepts only deletions")
	cmd.Flags().StringVar(&f.quota, "quota", "none",
		"limits of its pods' and claims' requests, such as cpu=2,memory=4Gi,pods=20,storage=10Gi; resources without a limit are limited by the share of all virtual clusters")
	cmd.Flags().StringVar(&f.guarantee, "guarantee", "none", "capacity reserved for its pods, such as cpu=500m,memory=512Mi,pods=5")
	cmd.Flags().StringVar(&f.targets, "targets", "none", "peers on which its pods may run, too, such as b,c, or all")
}

// read checks the flags and returns them: all, or those on the command line.
func (f *vclusterFlags) read(cmd *cobra.Command, all bool) (to vcluster.Change, err error) {
	given := func(flag string) bool { return all || cmd.Flags().Changed(flag) }
	if given("sleep") {
		to.Sleep = &f.sleep
	}
	if given("watch-keeps-awake") {
		to.WatchKeepsAwake = &f.watchKeepsAwake
	}
	for _, one := range []struct {
		flag, text, like string
		to               **int64
	}{{"memory", f.memory, "512Mi", &to.Memory}, {"datastore", f.datastore, f.like, &to.Datastore}} {
		if given(one.flag) {
			q, err := resource.ParseQuantity(one.text)
			if err != nil {
				return to, usagef("--%s %.40q: %w; say it like %s", one.flag, one.text, err, one.like)
			}
			bytes := q.Value()
			*one.to = &bytes
		}
	}
	for _, one := range []struct {
		flag, text string
		to         **corev1.ResourceList
	}{{"quota", f.quota, &to.Quota}, {"guarantee", f.guarantee, &to.Guarantee}} {
		if given(one.flag) {
			list, err := vcluster.ParseQuota(one.text)
			if err != nil {
				return to, usagef("--%s: %w", one.flag, err)
			}
			if list == nil {
				list = corev1.ResourceList{}
			}
			*one.to = &list
		}
	}
	if given("targets") {
		targets := []string{}
		if f.targets != "none" {
			targets = strings.Split(f.targets, ",")
		}
		to.Targets = &targets
	}
	return to, nil
}

func newVClusterSet(c *common) *cobra.Command {
	f := vclusterFlags{like: "512Mi"}
	cmd := &cobra.Command{
		Use: "set NAME", Short: "change the quota, guarantee, targets, sleep, memory or datastore of a virtual cluster",
		Long: "A quota applies at once to new pods and claims. Its cluster is asked to remove pods beyond it; after ten minutes the newest are deleted.\n" +
			"After a change of sleep, memory or datastore a running control plane restarts; requests wait meanwhile.",
		Args: oneName,
		RunE: func(cmd *cobra.Command, args []string) error {
			to, err := f.read(cmd, false)
			if err != nil {
				return err
			}
			if to == (vcluster.Change{}) {
				return usagef("set needs --quota, --guarantee, --targets, --sleep, --watch-keeps-awake, --memory or --datastore; see: %s --help", cmd.CommandPath())
			}
			var v vcluster.View
			if err := requestVCluster(cmd.Context(), c, http.MethodPatch, inPath(args[0]), to, &v); err != nil {
				return err
			}
			return result(cmd, c, v, printVCluster)
		},
	}
	f.register(cmd)
	return withOutput(c, cmd)
}

// ownerText names the owning object.
func ownerText(v vcluster.View) string {
	if v.Owner == (vcluster.Owner{}) {
		return "-"
	}
	return "VirtualCluster " + v.Owner.String()
}

func newVClusterList(c *common) *cobra.Command {
	return withOutput(c, &cobra.Command{
		Use: "list", Short: "list the virtual clusters of this device", Args: noArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			var all []vcluster.View
			if err := requestVCluster(cmd.Context(), c, http.MethodGet, "", nil, &all); err != nil {
				return err
			}
			return result(cmd, c, all, func(out io.Writer, all []vcluster.View) error { return printVClusters(out, all, c.output == "wide") })
		},
	}, "wide")
}

// usable is a line about one that was made and started, or starts when there is room.
func usable(v vcluster.View) string {
	if v.WaitsForMemory {
		return v.Name + " is made, and starts by itself when there is room: " + v.Reason
	}
	return fmt.Sprintf("%s can be used, after %.1f s", v.Name, v.Took.Seconds())
}

// moreAwake is a line about the memory of a device with little room; another is said nothing of.
func moreAwake(v vcluster.View) string {
	if v.Room >= 10 {
		return ""
	}
	return fmt.Sprintf("room for %d more awake\n", v.Room)
}

func printVClusters(out io.Writer, all []vcluster.View, wide bool) error {
	if len(all) > 0 {
		defer fmt.Fprint(out, moreAwake(all[0]))
	}
	head := "NAME\tSTATE\tSINCE\tLAST USE\tBY\tPODS\tCPU\tMEMORY\tDISK\tREASON"
	if wide {
		head += "\tCONTROL PLANE\tDATASTORE\tADDRESS\tSLEEPS AFTER\tLAST START\tCREATED\tUSES"
	}
	return table(out, "no virtual cluster; make one with: rivulet vcluster create NAME", head, all, func(v vcluster.View) []any {
		last := "-"
		if !v.LastUse.IsZero() {
			last = v.LastUse.UTC().Format(time.DateTime)
		}
		cells := []any{v.Name, v.State, v.Since.UTC().Format(time.DateTime), last, dash(v.LastUser), v.Pods, v.UseOf(corev1.ResourceCPU), v.UseOf(corev1.ResourceMemory), mebibytes(v.Disk), dash(v.Reason)}
		if wide {
			cells = append(cells, ofLimit(v.Private, v.Memory), ofLimit(v.Stored, v.Datastore), v.Address, v.Sleep, seconds(v.Took), v.Created.UTC().Format(time.DateTime), v.Uses())
		}
		return cells
	})
}

// ofLimit is the use of a limit.
func ofLimit(used, limit int64) string {
	return fmt.Sprintf("%s of %s", mebibytes(used), mebibytes(limit))
}

func mebibytes(n int64) string {
	if n == 0 {
		return "-"
	}
	return fmt.Sprintf("%.1f Mi", float64(n)/(1<<20))
}

func newVClusterDescribe(c *common) *cobra.Command {
	return withOutput(c, &cobra.Command{
		Use: "describe NAME", Short: "show all details of one virtual cluster", Args: oneName,
		Long: "Exit code 0: usable, asleep or not; 3: not usable now.",
		RunE: func(cmd *cobra.Command, args []string) error {
			var v vcluster.View
			if err := requestVCluster(cmd.Context(), c, http.MethodGet, inPath(args[0]), nil, &v); err != nil {
				return err
			}
			if err := result(cmd, c, v, printVCluster); err != nil {
				return err
			}
			if v.State != vcluster.Awake && v.State != vcluster.Asleep {
				return &exitError{code: exitNotReady}
			}
			return nil
		},
	})
}

func printVCluster(out io.Writer, v vcluster.View) error {
	sleep := "never"
	if v.Sleep > 0 {
		sleep = "after " + v.Sleep.String() + " without use"
	}
	pid := "-"
	if v.PID != 0 {
		pid = fmt.Sprint(v.PID)
	}
	return pairs(out, [][2]string{
		{"name", v.Name}, {"state", string(v.State)}, {"reason", dash(v.Reason)}, {"since", v.Since.UTC().Format(time.DateTime)}, {"address", v.Address.String()},
		{"created", v.Created.UTC().Format(time.DateTime)}, {"sleeps", sleep}, {"process", pid}, {"memory", ofLimit(v.Private, v.Memory)}, {"datastore", ofLimit(v.Stored, v.Datastore)},
		{"object", ownerText(v)}, {"targets", dash(strings.Join(v.Targets, ", "))}, {"uses", v.Uses()}, {"disk", mebibytes(v.Disk)}, {"last start", fmt.Sprintf("%.1f s", v.Took.Seconds())},
	})
}

func newVClusterAct(c *common, verb, done, short string) *cobra.Command {
	return &cobra.Command{
		Use: verb + " NAME", Short: short, Args: oneName,
		RunE: func(cmd *cobra.Command, args []string) error {
			var v vcluster.View
			if err := requestVCluster(cmd.Context(), c, http.MethodPost, inPath(args[0])+"/"+verb, nil, &v); err != nil {
				return err
			}
			if v.WaitsForMemory {
				done += ", and starts by itself when there is room: " + v.Reason
			}
			return printf(cmd, "%s %s\n", v.Name, done)
		},
	}
}

func newVClusterSnapshot(c *common) *cobra.Command {
	var force, bare bool
	var passphrase string
	cmd := &cobra.Command{
		Use: "snapshot NAME FILE|-", Short: "save a virtual cluster into one file (- is standard output), which contains private keys",
		Long: "Its objects, authorities, settings and the data of its claims are in the file; no pod may use a claim meanwhile. While the datastore\n" +
			"is copied, about a second, its control plane is stopped; requests wait meanwhile. The file gives full access to the virtual cluster:\n" +
			"protect it like a key, or encrypt it with --passphrase-file.",
		Args: func(cmd *cobra.Command, args []string) error {
			if len(args) != 2 || args[1] == "" {
				return usagef("%s takes a name and a file, or - for a stream; see: %s --help", cmd.Name(), cmd.CommandPath())
			}
			return nil
		},
		RunE: func(cmd *cobra.Command, args []string) error {
			name, file := args[0], args[1]
			words, err := readPassphrase(passphrase)
			if err != nil {
				return err
			}
			terminal := usagef("a snapshot is not for a terminal; send it somewhere, for example: %s %s - > FILE", cmd.CommandPath(), name)
			err = saveTo(cmd, file, force, terminal, "saving the virtual cluster", func(w io.Writer) error {
				return saveVCluster(cmd.Context(), c, name, bare, words, w)
			})
			if err != nil || file == "-" {
				return err
			}
			secret := "it holds private keys in the clear"
			if words != "" {
				secret = "it is encrypted; without the passphrase it is worth nothing"
			}
			return printf(cmd, "%s: virtual cluster %s; %s\n", file, name, secret)
		},
	}
	cmd.Flags().BoolVar(&force, "force", false, "replace an existing file, after the snapshot is complete")
	cmd.Flags().BoolVar(&bare, "without-data", false, "leave out the data of claims; after a restore they are empty")
	cmd.Flags().StringVar(&passphrase, "passphrase-file", "", "encrypt with the passphrase on the first line of this file")
	return cmd
}

func saveVCluster(ctx context.Context, c *common, name string, bare bool, passphrase string, out io.Writer) (err error) {
	query := ""
	if bare {
		query = "?data=no"
	}
	resp, err := api.Do(ctx, c.dirs.Run, http.MethodPost, "/v1/vclusters"+inPath(name)+"/snapshot"+query, nil)
	if err != nil {
		return err
	}
	defer resp.Body.Close()
	end := func() error { return nil }
	if passphrase != "" {
		sealed, err := archive.Seal(out, passphrase)
		if err != nil {
			return err
		}
		out, end = sealed, sealed.Close
	}
	if _, err := io.Copy(out, resp.Body); err != nil {
		return fmt.Errorf("%w; see: rivulet vcluster logs %s", err, name)
	}
	return end()
}

func newVClusterRestore(c *common) *cobra.Command {
	var as, passphrase string
	cmd := &cobra.Command{
		Use: "restore FILE|-", Short: "create a virtual cluster from a snapshot of this or another device, and wait until it is ready",
		Long: "It has its former name, and accepts its former kubeconfigs' keys; addresses differ, so connect again. With --as it is a copy\n" +
			"with its own authorities: credentials of one are not valid in the other. Its pods start again here.\n" +
			"Unless it is a copy, the original must not run anywhere else: both would be the same cluster.",
		Args: oneFile,
		RunE: func(cmd *cobra.Command, args []string) error {
			if as != "" {
				if err := (&vcluster.Spec{Name: as}).Check(); err != nil {
					return &usageError{err}
				}
			}
			words, err := readPassphrase(passphrase)
			if err != nil {
				return err
			}
			in, err := input(cmd, args[0], "name the file of `rivulet vcluster snapshot`")
			if err != nil {
				return err
			}
			defer in.Close()
			plain, err := archive.Unseal(in, words)
			if err != nil {
				return err
			}
			end := busy("restoring the virtual cluster")
			resp, err := api.Do(cmd.Context(), c.dirs.Run, http.MethodPost, "/v1/vclusters/restore?as="+url.QueryEscape(as), plain)
			end()
			if err != nil {
				return err
			}
			defer resp.Body.Close()
			var v vcluster.View
			if err := json.NewDecoder(resp.Body).Decode(&v); err != nil {
				return fmt.Errorf("the supervisor's answer is unreadable: %w; see: rivulet vcluster list", err)
			}
			return resultf(cmd, c, v, "%s\nnext: rivulet vcluster connect %s -- kubectl get pods -A\n", usable(v), v.Name)
		},
	}
	cmd.Flags().StringVar(&as, "as", "", "make a copy with this name")
	cmd.Flags().StringVar(&passphrase, "passphrase-file", "", "file with the passphrase of an encrypted snapshot")
	return withOutput(c, cmd)
}

func newVClusterDelete(c *common) *cobra.Command {
	var force bool
	cmd := &cobra.Command{
		Use: "delete NAME...", Short: "delete virtual clusters with all their content",
		Args: func(cmd *cobra.Command, args []string) error {
			if len(args) == 0 || slices.Contains(args, "") {
				return usagef("%s takes a name, or several; see: %s --help", cmd.Name(), cmd.CommandPath())
			}
			return nil
		},
		RunE: func(cmd *cobra.Command, args []string) error {
			var what []string
			for _, name := range args {
				var v vcluster.View
				if err := requestVCluster(cmd.Context(), c, http.MethodGet, inPath(name), nil, &v); err != nil {
					return err
				}
				if v.Owner.Name != "" && !force {
					return fmt.Errorf("%s is made of the object VirtualCluster %s; delete that: rivulet kubectl -n %s delete virtualcluster %s", name, v.Owner, v.Owner.Namespace, v.Owner.Name)
				}
				what = append(what, "used by "+name+": "+v.Uses())
			}
			if err := confirm(cmd, "delete "+strings.Join(args, ", ")+" with all that is in it", strings.Join(what, ". ")); err != nil {
				return err
			}
			query := ""
			if force {
				query = "?force=yes"
			}
			defer busy("deleting")()
			return together(args, func(name string) error {
				if err := api.CallWithin(cmd.Context(), vclusterTimeout, c.dirs.Run, http.MethodDelete, "/v1/vclusters"+inPath(name)+query, nil, nil); err != nil {
					return err
				}
				return printf(cmd, "%s is deleted\n", name)
			})
		},
	}
	yesFlag(cmd)
	cmd.Flags().BoolVar(&force, "force", false, "also one that was made from a VirtualCluster object")
	return cmd
}

func newVClusterLogs(c *common) *cobra.Command {
	follow := false
	cmd := &cobra.Command{
		Use: "logs NAME", Short: "show the last lines of its control plane's log", Args: oneName,
		RunE: func(cmd *cobra.Command, args []string) error {
			if !follow {
				var log api.Text
				if err := requestVCluster(cmd.Context(), c, http.MethodGet, inPath(args[0])+"/log", nil, &log); err != nil {
					return err
				}
				return printf(cmd, "%s", log.Text)
			}
			resp, err := api.Do(cmd.Context(), c.dirs.Run, http.MethodGet, "/v1/vclusters"+inPath(args[0])+"/log?follow=yes", nil)
			if err != nil {
				return err
			}
			defer resp.Body.Close()
			_, err = io.Copy(cmd.OutOrStdout(), resp.Body)
			return err
		},
	}
	cmd.Flags().BoolVarP(&follow, "follow", "f", false, "show new lines as they come, until Ctrl-C")
	return cmd
}

func newVClusterConnect(c *common) *cobra.Command {
	var file string
	cmd := &cobra.Command{
		Use:   "connect NAME [-- COMMAND ...]",
		Short: "run a command with the virtual cluster's kubeconfig, or write the kubeconfig into a file",
		Long: "With a command, KUBECONFIG is set for that command only; kubectl is the embedded one.\n" +
			"Without one, the context vcluster-NAME is added to the file of --kubeconfig, $KUBECONFIG or ~/.kube/config, and made the current one.\n" +
			"The file is for this device's root: it is valid for a day, has an address that the LAN cannot reach, and all rights inside. For others: rivulet vcluster kubeconfig NAME",
		RunE: func(cmd *cobra.Command, args []string) error {
			if len(args) == 0 || cmd.ArgsLenAtDash() > 1 || cmd.ArgsLenAtDash() < 0 && len(args) > 1 {
				return usagef("connect takes one name, and a command after --; see: %s --help", cmd.CommandPath())
			}
			var config api.Text
			if err := requestVCluster(cmd.Context(), c, http.MethodGet, inPath(args[0])+"/kubeconfig", nil, &config); err != nil {
				return err
			}
			if len(args) > 1 {
				return runWith(c, args[0], config.Text, args[1:])
			}
			if file == "" {
				file = kubeconfigFile()
			}
			name := "vcluster-" + args[0]
			if err := mergeKubeconfig(file, name, config.Text); err != nil {
				return err
			}
			return printf(cmd, "context %s is in %s\n", name, file)
		},
	}
	cmd.Flags().StringVar(&file, "kubeconfig", "", "the file for the context")
	return cmd
}

func kubeconfigFile() string {
	if list := filepath.SplitList(os.Getenv("KUBECONFIG")); len(list) > 0 {
		return list[0]
	}
	return clientcmd.RecommendedHomeFile
}

// runWith replaces this process by the command. Its kubeconfig stays until the virtual cluster is deleted, or to the
// next boot.
func runWith(c *common, name, config string, command []string) error {
	path := vcluster.KubeconfigFile(c.dirs.Run, name)
	if err := os.WriteFile(path, []byte(config), 0o600); err != nil {
		return fmt.Errorf("%w; run it as root", err)
	}
	os.Setenv("KUBECONFIG", path)
	program, err := exec.LookPath(command[0])
	if command[0] == "kubectl" {
		if os.Getenv("KUBECACHEDIR") == "" {
			os.Setenv("KUBECACHEDIR", filepath.Join(c.dirs.Run, "kubectl"))
		}
		program, err = os.Executable()
	}
	if err != nil {
		return fmt.Errorf("%w; name a program that is there", err)
	}
	return fmt.Errorf("%s: %w", command[0], syscall.Exec(program, command, os.Environ()))
}

// mergeKubeconfig adds the one context of a kubeconfig to a file under a name.
func mergeKubeconfig(file, name, config string) error {
	from, err := clientcmd.Load([]byte(config))
	if err != nil {
		return err
	}
	into, err := clientcmd.LoadFromFile(file)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		into = clientcmdapi.NewConfig()
	case err != nil:
		return fmt.Errorf("%s: %w; name another file with --kubeconfig", file, err)
	}
	current := from.Contexts[from.CurrentContext]
	into.Clusters[name], into.AuthInfos[name] = from.Clusters[current.Cluster], from.AuthInfos[current.AuthInfo]
	into.Contexts[name] = &clientcmdapi.Context{Cluster: name, AuthInfo: name}
	into.CurrentContext = name
	return clientcmd.WriteToFile(*into, file)
}
