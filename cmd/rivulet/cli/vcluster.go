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
	"strings"
	"syscall"
	"text/tabwriter"
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
	cmd := &cobra.Command{
		Use:   "vcluster",
		Short: "clusters inside this one: a control plane each, asleep when nobody uses it",
		Long: "A virtual cluster has an API server, a datastore and an administrator of its own. Its process sees nothing of this device but its own folder.\n" +
			"When nobody uses it, it ends; the next request starts it again, and waits for that. Its pods run on this device, with a part of what that lends to other clusters, and go on meanwhile.",
		Args: noArgs,
		RunE: func(cmd *cobra.Command, _ []string) error { return cmd.Help() },
	}
	cmd.AddCommand(newVClusterCreate(c), newVClusterList(c), newVClusterDescribe(c), newVClusterConnect(c), newVClusterKubeconfig(c), newVClusterSet(c),
		newVClusterAct(c, "pause", "end its control plane until it is resumed; requests do not wake it"),
		newVClusterAct(c, "resume", "start a paused control plane again"),
		newVClusterSnapshot(c), newVClusterRestore(c), newVClusterDelete(c), newVClusterLogs(c))
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
	var memory, datastore, quota, guarantee string
	cmd := &cobra.Command{
		Use: "create NAME", Short: "make a virtual cluster, and wait until it can be used",
		Args: oneVCluster,
		RunE: func(cmd *cobra.Command, args []string) error {
			q, err := resource.ParseQuantity(memory)
			if err != nil {
				return usagef("--memory %.40q: %w; say it like 512Mi", memory, err)
			}
			spec.Name, spec.Memory = args[0], q.Value()
			if q, err = resource.ParseQuantity(datastore); err != nil {
				return usagef("--datastore %.40q: %w; say it like 256Mi", datastore, err)
			}
			spec.Datastore = q.Value()
			if spec.Quota, err = vcluster.ParseQuota(quota); err != nil {
				return usagef("--quota: %w", err)
			}
			if spec.Guarantee, err = vcluster.ParseQuota(guarantee); err != nil {
				return usagef("--guarantee: %w", err)
			}
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
	cmd.Flags().StringVar(&datastore, "datastore", "256Mi", datastoreHelp)
	cmd.Flags().StringVar(&quota, "quota", "none", quotaHelp)
	cmd.Flags().StringVar(&guarantee, "guarantee", "none", guaranteeHelp)
	outputFlag(cmd, c)
	return cmd
}

const quotaHelp = "what its pods and claims may ask for, such as cpu=2,memory=4Gi,pods=20,storage=10Gi; what is not named is bounded by what all virtual clusters have together"

const datastoreHelp = "limit of its datastore; what is full takes deletions alone"

const guaranteeHelp = "what is kept free for its pods whatever other virtual clusters use, such as cpu=500m,memory=512Mi,pods=5"

func newVClusterSet(c *common) *cobra.Command {
	var sleep time.Duration
	var memory, datastore, quota, guarantee string
	cmd := &cobra.Command{
		Use: "set NAME", Short: "give a virtual cluster another quota, guarantee, sleep, memory or datastore",
		Long: "A quota holds at once for what is made from now on. Pods beyond it are handed back: where they have not gone after ten minutes, the newest are deleted.\n" +
			"For another sleep, memory or datastore a control plane that runs starts again; who asks meanwhile waits.",
		Args: oneVCluster,
		RunE: func(cmd *cobra.Command, args []string) error {
			var to vcluster.Change
			if cmd.Flags().Changed("sleep") {
				to.Sleep = &sleep
			}
			for _, one := range []struct {
				flag, text string
				to         **int64
			}{{"memory", memory, &to.Memory}, {"datastore", datastore, &to.Datastore}} {
				if cmd.Flags().Changed(one.flag) {
					q, err := resource.ParseQuantity(one.text)
					if err != nil {
						return usagef("--%s %.40q: %w; say it like 512Mi", one.flag, one.text, err)
					}
					bytes := q.Value()
					*one.to = &bytes
				}
			}
			for _, one := range []struct {
				flag, text string
				to         **corev1.ResourceList
			}{{"quota", quota, &to.Quota}, {"guarantee", guarantee, &to.Guarantee}} {
				if cmd.Flags().Changed(one.flag) {
					list, err := vcluster.ParseQuota(one.text)
					if err != nil {
						return usagef("--%s: %w", one.flag, err)
					}
					if list == nil {
						list = corev1.ResourceList{}
					}
					*one.to = &list
				}
			}
			if to == (vcluster.Change{}) {
				return usagef("set needs --quota, --guarantee, --sleep, --memory or --datastore; see: %s --help", cmd.CommandPath())
			}
			var v vcluster.View
			if err := askVCluster(cmd.Context(), c, http.MethodPatch, inPath(args[0]), to, &v); err != nil {
				return err
			}
			return printVCluster(cmd, c, v)
		},
	}
	cmd.Flags().DurationVar(&sleep, "sleep", vcluster.DefaultSleep, "how long nobody may use it before its control plane ends; 0 is never")
	cmd.Flags().StringVar(&memory, "memory", "512Mi", "limit of its control plane's memory")
	cmd.Flags().StringVar(&datastore, "datastore", "256Mi", datastoreHelp)
	cmd.Flags().StringVar(&quota, "quota", "none", quotaHelp)
	cmd.Flags().StringVar(&guarantee, "guarantee", "none", guaranteeHelp)
	outputFlag(cmd, c)
	return cmd
}

// ownerText names the object that it is made of.
func ownerText(v vcluster.View) string {
	if v.Owner == (vcluster.Owner{}) {
		return "-"
	}
	return "VirtualCluster " + v.Owner.String()
}

// quotaText is what is used of each resource, and the bound if there is one.
func quotaText(v vcluster.View) string {
	var out []string
	for _, name := range []corev1.ResourceName{corev1.ResourceCPU, corev1.ResourceMemory, corev1.ResourcePods, corev1.ResourceStorage} {
		used := v.Use[name]
		text := fmt.Sprintf("%s %s", name, used.String())
		if most, bounded := v.Quota[name]; bounded {
			text += " of " + most.String()
		}
		out = append(out, text)
	}
	return strings.Join(out, ", ")
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
			head, more := "NAME\tSTATE\tSINCE\tPODS\tMEMORY\tDATASTORE\tADDRESS\tREASON", ""
			if c.output == "wide" {
				head += "\tDISK\tSLEEPS AFTER\tLAST START\tCREATED\tUSES"
			}
			fmt.Fprintln(w, head)
			for _, v := range all {
				if c.output == "wide" {
					more = fmt.Sprintf("\t%s\t%s\t%s\t%s\t%s", mebibytes(v.Disk), v.Sleep, seconds(v.Took), v.Created.UTC().Format(time.DateTime), quotaText(v))
				}
				fmt.Fprintf(w, "%s\t%s\t%s\t%d\t%s\t%s\t%s\t%s%s\n", v.Name, v.State, v.Since.UTC().Format(time.DateTime), v.Pods, ofLimit(v.Private, v.Memory), ofLimit(v.Stored, v.Datastore), v.Address, dash(v.Reason), more)
			}
			return w.Flush()
		},
	}
	outputFlag(cmd, c, "wide")
	return cmd
}

// ofLimit is what is used of a limit.
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
		{"created", v.Created.UTC().Format(time.DateTime)}, {"sleeps", sleep}, {"process", pid}, {"memory", ofLimit(v.Private, v.Memory)}, {"datastore", ofLimit(v.Stored, v.Datastore)},
		{"object", ownerText(v)}, {"uses", quotaText(v)}, {"disk", mebibytes(v.Disk)}, {"last start", fmt.Sprintf("%.1f s", v.Took.Seconds())},
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

func newVClusterSnapshot(c *common) *cobra.Command {
	var force, bare bool
	var passphrase string
	cmd := &cobra.Command{
		Use: "snapshot NAME FILE|-", Short: "save a virtual cluster into one file (- is standard output); it holds private keys",
		Long: "Its objects, authorities, settings and the data of its claims are in the file; no pod may use a claim meanwhile. While the datastore\n" +
			"is copied, a second or so, its control plane does not run; who asks meanwhile waits. Whoever has the file has the virtual cluster:\n" +
			"keep it as you keep a key, or encrypt it with --passphrase-file.",
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
			if file == "-" {
				if isTerminal(cmd.OutOrStdout()) {
					return usagef("a snapshot is not for a terminal; send it somewhere, for example: %s %s - > FILE", cmd.CommandPath(), name)
				}
				return saveVCluster(cmd.Context(), c, name, bare, words, cmd.OutOrStdout())
			}
			if _, err := os.Lstat(file); err == nil && !force {
				return fmt.Errorf("%s is there already; give another name, or replace it with --force", file)
			}
			err = toFile(file, "choose another place for the file", func(w io.Writer) error {
				defer busy("saving the virtual cluster")()
				return saveVCluster(cmd.Context(), c, name, bare, words, w)
			})
			if err != nil {
				return err
			}
			secret := "it holds private keys in the clear"
			if words != "" {
				secret = "it is encrypted; without the passphrase it is worth nothing"
			}
			_, err = fmt.Fprintf(cmd.OutOrStdout(), "%s: virtual cluster %s; %s\n", file, name, secret)
			return err
		},
	}
	cmd.Flags().BoolVar(&force, "force", false, "replace a file of that name, once the snapshot is whole")
	cmd.Flags().BoolVar(&bare, "without-data", false, "leave the data of claims out; they start empty where it is restored")
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
	if passphrase != "" {
		sealed, err := archive.Seal(out, passphrase)
		if err != nil {
			return err
		}
		if _, err := io.Copy(sealed, resp.Body); err != nil {
			return fmt.Errorf("%w; see: rivulet vcluster logs %s", err, name)
		}
		return sealed.Close()
	}
	if _, err := io.Copy(out, resp.Body); err != nil {
		return fmt.Errorf("%w; see: rivulet vcluster logs %s", err, name)
	}
	return nil
}

func newVClusterRestore(c *common) *cobra.Command {
	var as, passphrase string
	cmd := &cobra.Command{
		Use: "restore FILE|-", Short: "make a virtual cluster of a snapshot, of this device or another, and wait until it can be used",
		Long: "It has the name that it had, and takes the kubeconfigs' keys that it took; addresses differ, so connect again. With --as it is a copy\n" +
			"with authorities of its own: no credential of the one holds in the other. Its pods start anew here.\n" +
			"The virtual cluster of the snapshot must not go on elsewhere unless the new one is a copy: both would be the same cluster.",
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
			in := cmd.InOrStdin()
			if args[0] != "-" {
				f, err := os.Open(args[0])
				if err != nil {
					return fmt.Errorf("%w; name the file of `rivulet vcluster snapshot`", err)
				}
				defer f.Close()
				in = f
			}
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
			if c.forProgram() {
				return c.print(cmd.OutOrStdout(), v)
			}
			_, err = fmt.Fprintf(cmd.OutOrStdout(), "%s can be used, after %.1f s\nnext: rivulet vcluster connect %s -- kubectl get pods -A\n", v.Name, v.Took.Seconds(), v.Name)
			return err
		},
	}
	cmd.Flags().StringVar(&as, "as", "", "make a copy of this name")
	cmd.Flags().StringVar(&passphrase, "passphrase-file", "", "file with the passphrase of an encrypted snapshot")
	outputFlag(cmd, c)
	return cmd
}

func newVClusterDelete(c *common) *cobra.Command {
	var force bool
	cmd := &cobra.Command{
		Use: "delete NAME", Short: "delete a virtual cluster with all that is in it", Args: oneVCluster,
		RunE: func(cmd *cobra.Command, args []string) error {
			var v vcluster.View
			what := "virtual cluster " + args[0] + " is deleted, with all that is in it"
			if err := askVCluster(cmd.Context(), c, http.MethodGet, inPath(args[0]), nil, &v); err == nil {
				what += ". It uses: " + quotaText(v)
			}
			if err := confirm(cmd, what); err != nil {
				return err
			}
			query := ""
			if force {
				query = "?force=yes"
			}
			if err := askVCluster(cmd.Context(), c, http.MethodDelete, inPath(args[0])+query, nil, nil); err != nil {
				return err
			}
			_, err := fmt.Fprintf(cmd.OutOrStdout(), "%s is deleted\n", args[0])
			return err
		},
	}
	yesFlag(cmd)
	cmd.Flags().BoolVar(&force, "force", false, "also one that is made of an object VirtualCluster, whose object is gone")
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
			"The file is for this device's root: it holds for a day, at an address that the LAN does not reach, and has all rights inside. For others: rivulet vcluster kubeconfig NAME",
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

// runWith becomes the command. Its kubeconfig stays until the virtual cluster is deleted, or to the next boot.
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
