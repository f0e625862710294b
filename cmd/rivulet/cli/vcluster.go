package cli

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"net/http"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"syscall"
	"text/tabwriter"
	"time"

	"github.com/spf13/cobra"
	"k8s.io/apimachinery/pkg/api/resource"
	"k8s.io/client-go/tools/clientcmd"
	clientcmdapi "k8s.io/client-go/tools/clientcmd/api"

	"rivulet/appliance/api"
	"rivulet/appliance/vcluster"
)

func newVCluster(c *common) *cobra.Command {
	cmd := &cobra.Command{
		Use:   "vcluster",
		Short: "clusters inside this one: a control plane each, asleep when nobody uses it",
		Long: "A virtual cluster has an API server, a datastore and an administrator of its own. Its process sees nothing of this device but its own folder.\n" +
			"When nobody uses it, it ends; the next request starts it again, and waits for that. Its pods run on this device, with a part of what that lends to other clusters, and go on meanwhile.",
		Args: noArgs,
		RunE: func(cmd *cobra.Command, _ []string) error { return cmd.Help() },
	}
	cmd.AddCommand(newVClusterCreate(c), newVClusterList(c), newVClusterDescribe(c), newVClusterConnect(c),
		newVClusterAct(c, "pause", "end its control plane until it is resumed; requests do not wake it"),
		newVClusterAct(c, "resume", "start a paused control plane again"),
		newVClusterDelete(c), newVClusterLogs(c))
	return cmd
}

// vclusterTimeout is for what waits for a control plane.
const vclusterTimeout = 4 * time.Minute

func askVCluster(ctx context.Context, c *common, method, path string, in, out any) error {
	defer busy("waiting for the virtual cluster")()
	return api.CallWithin(ctx, vclusterTimeout, c.dirs.Run, method, "/v1/vclusters"+path, in, out)
}

func oneVCluster(cmd *cobra.Command, args []string) error {
	if len(args) != 1 {
		return usagef("%s takes one name; see: %s --help", cmd.Name(), cmd.CommandPath())
	}
	return nil
}

func inPath(name string) string { return "/" + url.PathEscape(name) }

func newVClusterCreate(c *common) *cobra.Command {
	var spec vcluster.Spec
	var memory string
	cmd := &cobra.Command{
		Use: "create NAME", Short: "make a virtual cluster, and wait until it can be used",
		Args: oneVCluster,
		RunE: func(cmd *cobra.Command, args []string) error {
			q, err := resource.ParseQuantity(memory)
			if err != nil {
				return usagef("--memory %.40q: %w; say it like 512Mi", memory, err)
			}
			spec.Name, spec.Memory = args[0], q.Value()
			if err := spec.Check(); err != nil {
				return &usageError{err}
			}
			var v vcluster.View
			if err := askVCluster(cmd.Context(), c, http.MethodPost, "", spec, &v); err != nil {
				return err
			}
			if c.forProgram() {
				return c.print(cmd.OutOrStdout(), v)
			}
			_, err = fmt.Fprintf(cmd.OutOrStdout(), "%s can be used, after %.1f s\nnext: rivulet vcluster connect %s -- kubectl get namespaces\n", v.Name, v.Took.Seconds(), v.Name)
			return err
		},
	}
	cmd.Flags().DurationVar(&spec.Sleep, "sleep", vcluster.DefaultSleep, "how long nobody may use it before its control plane ends; 0 is never")
	cmd.Flags().StringVar(&memory, "memory", "512Mi", "limit of its control plane's memory")
	outputFlag(cmd, c)
	return cmd
}

func newVClusterList(c *common) *cobra.Command {
	cmd := &cobra.Command{
		Use: "list", Short: "the virtual clusters of this device", Args: noArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			var all []vcluster.View
			if err := askVCluster(cmd.Context(), c, http.MethodGet, "", nil, &all); err != nil {
				return err
			}
			if c.forProgram() {
				return c.print(cmd.OutOrStdout(), all)
			}
			if len(all) == 0 {
				_, err := fmt.Fprintln(cmd.OutOrStdout(), "no virtual cluster; make one with: rivulet vcluster create NAME")
				return err
			}
			w := tabwriter.NewWriter(cmd.OutOrStdout(), 0, 0, 2, ' ', 0)
			head, more := "NAME\tSTATE\tSINCE\tMEMORY\tDISK\tADDRESS\tREASON", ""
			if c.output == "wide" {
				head += "\tLIMIT\tSLEEPS AFTER\tLAST START\tCREATED"
			}
			fmt.Fprintln(w, head)
			for _, v := range all {
				if c.output == "wide" {
					more = fmt.Sprintf("\t%s\t%s\t%s\t%s", mebibytes(v.Memory), v.Sleep, seconds(v.Took), v.Created.UTC().Format(time.DateTime))
				}
				fmt.Fprintf(w, "%s\t%s\t%s\t%s\t%s\t%s\t%s%s\n", v.Name, v.State, v.Since.UTC().Format(time.DateTime), mebibytes(v.Private), mebibytes(v.Disk), v.Address, dash(v.Reason), more)
			}
			return w.Flush()
		},
	}
	outputFlag(cmd, c, "wide")
	return cmd
}

func mebibytes(n int64) string {
	if n == 0 {
		return "-"
	}
	return fmt.Sprintf("%.1f Mi", float64(n)/(1<<20))
}

func newVClusterDescribe(c *common) *cobra.Command {
	cmd := &cobra.Command{
		Use: "describe NAME", Short: "all that is known of one virtual cluster", Args: oneVCluster,
		Long: "Exit code 0: it can be used, asleep or not; 3: it cannot now.",
		RunE: func(cmd *cobra.Command, args []string) error {
			var v vcluster.View
			if err := askVCluster(cmd.Context(), c, http.MethodGet, inPath(args[0]), nil, &v); err != nil {
				return err
			}
			if err := printVCluster(cmd, c, v); err != nil {
				return err
			}
			if v.State != vcluster.Awake && v.State != vcluster.Asleep {
				return &exitError{code: exitNotReady}
			}
			return nil
		},
	}
	outputFlag(cmd, c)
	return cmd
}

func printVCluster(cmd *cobra.Command, c *common, v vcluster.View) error {
	if c.forProgram() {
		return c.print(cmd.OutOrStdout(), v)
	}
	w := tabwriter.NewWriter(cmd.OutOrStdout(), 0, 0, 2, ' ', 0)
	sleep := "never"
	if v.Sleep > 0 {
		sleep = "after " + v.Sleep.String() + " without use"
	}
	pid := "-"
	if v.PID != 0 {
		pid = fmt.Sprint(v.PID)
	}
	for _, row := range [][2]string{
		{"name", v.Name}, {"state", string(v.State)}, {"reason", dash(v.Reason)}, {"since", v.Since.UTC().Format(time.DateTime)}, {"address", v.Address.String()},
		{"created", v.Created.UTC().Format(time.DateTime)}, {"sleeps", sleep}, {"process", pid}, {"memory", fmt.Sprintf("%s, limit %s", mebibytes(v.Private), mebibytes(v.Memory))},
		{"pods", fmt.Sprintf("%d on this device", v.Pods)}, {"disk", mebibytes(v.Disk)}, {"last start", fmt.Sprintf("%.1f s", v.Took.Seconds())},
	} {
		fmt.Fprintf(w, "%s\t%s\n", row[0], row[1])
	}
	return w.Flush()
}

func newVClusterAct(c *common, verb, short string) *cobra.Command {
	cmd := &cobra.Command{
		Use: verb + " NAME", Short: short, Args: oneVCluster,
		RunE: func(cmd *cobra.Command, args []string) error {
			var v vcluster.View
			if err := askVCluster(cmd.Context(), c, http.MethodPost, inPath(args[0])+"/"+verb, nil, &v); err != nil {
				return err
			}
			_, err := fmt.Fprintf(cmd.OutOrStdout(), "%s is %sd\n", v.Name, verb)
			return err
		},
	}
	return cmd
}

func newVClusterDelete(c *common) *cobra.Command {
	var yes bool
	cmd := &cobra.Command{
		Use: "delete NAME", Short: "delete a virtual cluster with all that is in it", Args: oneVCluster,
		RunE: func(cmd *cobra.Command, args []string) error {
			if err := confirm(cmd, yes, "virtual cluster "+args[0]+" is deleted, with all that is in it"); err != nil {
				return err
			}
			if err := askVCluster(cmd.Context(), c, http.MethodDelete, inPath(args[0]), nil, nil); err != nil {
				return err
			}
			_, err := fmt.Fprintf(cmd.OutOrStdout(), "%s is deleted\n", args[0])
			return err
		},
	}
	cmd.Flags().BoolVar(&yes, "yes", false, "do not ask")
	return cmd
}

func newVClusterLogs(c *common) *cobra.Command {
	return &cobra.Command{
		Use: "logs NAME", Short: "what its control plane said last", Args: oneVCluster,
		RunE: func(cmd *cobra.Command, args []string) error {
			var log api.Text
			if err := askVCluster(cmd.Context(), c, http.MethodGet, inPath(args[0])+"/log", nil, &log); err != nil {
				return err
			}
			_, err := fmt.Fprint(cmd.OutOrStdout(), log.Text)
			return err
		},
	}
}

func newVClusterConnect(c *common) *cobra.Command {
	var file string
	cmd := &cobra.Command{
		Use:   "connect NAME [-- COMMAND ...]",
		Short: "run a command with the virtual cluster's kubeconfig, or write that into a file",
		Long: "With a command, KUBECONFIG is set for it alone; kubectl is the embedded one.\n" +
			"Without, the context vcluster-NAME is put into the file of --kubeconfig, $KUBECONFIG or ~/.kube/config, and made the current one.\n" +
			"The file has an administrator's key: who has it has all rights inside, and none outside.",
		RunE: func(cmd *cobra.Command, args []string) error {
			if len(args) == 0 || cmd.ArgsLenAtDash() > 1 || cmd.ArgsLenAtDash() < 0 && len(args) > 1 {
				return usagef("connect takes one name, and a command after --; see: %s --help", cmd.CommandPath())
			}
			var config api.Text
			if err := askVCluster(cmd.Context(), c, http.MethodGet, inPath(args[0])+"/kubeconfig", nil, &config); err != nil {
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
			_, err := fmt.Fprintf(cmd.OutOrStdout(), "context %s is in %s\n", name, file)
			return err
		},
	}
	cmd.Flags().StringVar(&file, "kubeconfig", "", "the file to put the context into")
	return cmd
}

func kubeconfigFile() string {
	if list := filepath.SplitList(os.Getenv("KUBECONFIG")); len(list) > 0 {
		return list[0]
	}
	return clientcmd.RecommendedHomeFile
}

// runWith becomes the command. Its kubeconfig stays, in a folder that is gone at boot.
func runWith(c *common, name, config string, command []string) error {
	path := filepath.Join(c.dirs.Run, "vcluster-"+name+".kubeconfig")
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

// mergeKubeconfig puts the one context of a kubeconfig into a file under a name.
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
