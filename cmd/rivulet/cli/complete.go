package cli

import (
	"context"
	"encoding/json"
	"net/http"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"rivulet/appliance/api"
	"rivulet/appliance/burst"
	"rivulet/appliance/diagnose/doctor"
	"rivulet/appliance/ui/webconsole"
	"rivulet/appliance/vcluster"
	"rivulet/offload/consumer/move"
	"rivulet/offload/policy"
)

// The time limit of completion: a shell that hangs is worse than no completion.
const completionTime = 2 * time.Second

// names returns the candidates for a word. A user without access gets none.
type names func(ctx context.Context, cmd *cobra.Command) ([]string, error)

// complete adds completion to every word and flag: existing objects, fixed values, the shell's files for a file, and
// nothing for free text.
func (c *common) complete(root *cobra.Command) {
	first := map[string]names{"why": c.whyNames, "trace": c.traceNames, "tenants remove": c.tenantNames, "image rm": c.imageNames, "invite revoke": c.inviteNames, "kubeconfig revoke": c.userNames, "metrics revoke": c.scraperNames, "move volume": c.objects("persistentvolumeclaims"), "volumes adopt": c.keptNames, "volumes delete": c.keptNames}
	for _, verb := range []string{"offload", "unoffload", "open", "close"} {
		first[verb] = c.objects("namespaces")
	}
	for _, verb := range []string{"peer", "approve", "deny", "unpeer", "cordon", "uncordon", "drain", "doctor peer"} {
		first[verb] = c.peerNames
	}
	for _, verb := range []string{"connect", "kubeconfig", "describe", "pause", "resume", "set", "snapshot", "delete", "logs"} {
		first["vcluster "+verb] = c.vclusterNames
	}
	for _, verb := range []string{"status", "remove"} {
		first["burst "+verb] = c.burstNames
	}
	first["vcluster sleep"], first["token revoke"], first["console end"] = c.vclusterNames, c.tokenNames, c.sessionNames
	for _, verb := range []string{"remove", "standby", "upgrade"} {
		first["nodes "+verb] = c.memberNames
	}
	for _, verb := range []string{"status", "report", "sleep", "kubeconfigs", "delete"} {
		first["course "+verb] = c.courseNames
	}
	values := map[string]names{
		"consume": oneOf("on", "off"), "provide": oneOf("on", "off"), "when": oneOf(string(policy.Burst), string(policy.Remote), string(policy.Any), string(policy.Services)), "role": oneOf("view", "edit", "admin"),
		"network": oneOf("none", "auto", "stream", "udp"), "pod-security": oneOf("auto", "restricted", "as-is"), "order": oneOf("last", "equal"), "arch": oneOf("amd64", "arm64"),
		"vcluster": c.vclusterNames, "only": probeNames, "namespace": c.objects("namespaces"), "to": c.targetNames, "from": c.objects("pods"),
	}
	each(root, func(cmd *cobra.Command) {
		if cmd.DisableFlagParsing {
			return
		}
		verb := path(cmd)
		file := strings.Contains(cmd.Use, "FILE") || verb == "flash"
		if cmd.ValidArgsFunction == nil && (first[verb] != nil || !file) {
			cmd.ValidArgsFunction = func(cmd *cobra.Command, args []string, _ string) ([]string, cobra.ShellCompDirective) {
				switch {
				case len(args) == 0 && first[verb] != nil, verb == "image rm", verb == "vcluster kubeconfig":
					return query(cmd, first[verb])
				case len(args) == 1 && verb == "move volume":
					return query(cmd, c.placeNames)
				case len(args) == 1 && file: // vcluster snapshot NAME FILE
					return nil, cobra.ShellCompDirectiveDefault
				}
				return nil, cobra.ShellCompDirectiveNoFileComp
			}
		}
		cmd.LocalNonPersistentFlags().VisitAll(func(f *pflag.Flag) {
			find := values[f.Name]
			switch verb + " " + f.Name {
			case "console login role":
				find = oneOf(string(webconsole.View), string(webconsole.Operate), string(webconsole.Admin))
			case "broker only": // fingerprints of groups, which no device here has
				find = nil
			case "offload prefer":
				find = oneOf("cheapest", "nearest", "spread", "none")
			}
			switch f.Name {
			// Files, and the values of outputFlag.
			case "config", "kubeconfig", "passphrase-file", "boot", "root", "output", "dir":
				return
			case "namespace":
				if strings.HasPrefix(verb, "burst ") { // of the other cluster
					find = nil
				}
			}
			_ = cmd.RegisterFlagCompletionFunc(f.Name, func(cmd *cobra.Command, _ []string, _ string) ([]string, cobra.ShellCompDirective) {
				return query(cmd, find)
			})
		})
	})
}

func query(cmd *cobra.Command, find names) ([]string, cobra.ShellCompDirective) {
	if find == nil {
		return nil, cobra.ShellCompDirectiveNoFileComp
	}
	ctx, cancel := context.WithTimeout(context.Background(), completionTime)
	defer cancel()
	found, err := find(ctx, cmd)
	if err != nil {
		return nil, cobra.ShellCompDirectiveNoFileComp
	}
	return found, cobra.ShellCompDirectiveNoFileComp
}

func oneOf(words ...string) names {
	return func(context.Context, *cobra.Command) ([]string, error) { return words, nil }
}

func probeNames(context.Context, *cobra.Command) (out []string, err error) {
	for _, p := range doctor.Probes() {
		out = append(out, p.Name())
	}
	return out, nil
}

// objects are those of a kind of the API: NAME, or NAMESPACE/NAME without the flag --namespace.
func (c *common) objects(resource string) names {
	return func(ctx context.Context, cmd *cobra.Command) (out []string, err error) {
		client, err := c.client()
		if err != nil {
			return nil, err
		}
		namespace := ""
		if resource == "pods" || resource == "services" {
			namespace, _ = cmd.Flags().GetString("namespace")
		}
		raw, err := client.CoreV1().RESTClient().Get().NamespaceIfScoped(namespace, namespace != "").Resource(resource).
			Param("resourceVersion", "0").SetHeader("Accept", "application/json").DoRaw(ctx)
		var list metav1.PartialObjectMetadataList
		if err == nil {
			err = json.Unmarshal(raw, &list)
		}
		for _, o := range list.Items {
			if o.Namespace != "" && namespace == "" {
				o.Name = o.Namespace + "/" + o.Name
			}
			out = append(out, o.Name)
		}
		return out, err
	}
}

// whyNames are the pods, and the peers.
func (c *common) whyNames(ctx context.Context, cmd *cobra.Command) ([]string, error) {
	out, err := c.objects("pods")(ctx, cmd)
	peers, _ := c.peerNames(ctx, cmd)
	for _, p := range peers {
		out = append(out, "peer/"+p)
	}
	return out, err
}

// traceNames are the Services, and the pods.
func (c *common) traceNames(ctx context.Context, cmd *cobra.Command) ([]string, error) {
	services, err := c.objects("services")(ctx, cmd)
	pods, _ := c.objects("pods")(ctx, cmd)
	return append(services, pods...), err
}

// peerNames are those known to the supervisor.
func (c *common) peerNames(ctx context.Context, _ *cobra.Command) (out []string, err error) {
	st, err := api.Get(ctx, c.dirs.Run)
	for _, p := range st.Peers {
		if p.Name != "" {
			out = append(out, p.Name)
		}
	}
	return out, err
}

// targetNames are the values of --to.
func (c *common) targetNames(ctx context.Context, cmd *cobra.Command) (out []string, err error) {
	out, err = c.peerNames(ctx, cmd)
	switch path(cmd) {
	case "open":
		out = append(out, policy.OpenToGroup, policy.OpenToAll)
	case "offload":
		burst, _ := c.burstNames(ctx, cmd)
		for _, b := range burst {
			out = append(out, "burst-"+b)
		}
	}
	return out, err
}

// placeNames are the destinations of a move of data.
func (c *common) placeNames(ctx context.Context, _ *cobra.Command) ([]string, error) {
	out := []string{move.Home}
	st, err := api.Get(ctx, c.dirs.Run)
	for _, n := range st.VirtualNodes {
		out = append(out, n.Name)
	}
	return out, err
}

func (c *common) tenantNames(ctx context.Context, _ *cobra.Command) (out []string, err error) {
	st, err := api.Get(ctx, c.dirs.Run)
	for _, t := range st.Consumers {
		out = append(out, tenantName(t))
	}
	return out, err
}

func (c *common) imageNames(ctx context.Context, _ *cobra.Command) (out []string, err error) {
	list, err := c.images(ctx)
	for _, i := range list {
		out = append(out, i.Name)
	}
	return out, err
}

func (c *common) inviteNames(ctx context.Context, _ *cobra.Command) (out []string, err error) {
	return c.openInvites(ctx, false)
}

func (c *common) tokenNames(ctx context.Context, _ *cobra.Command) (out []string, err error) {
	return c.openInvites(ctx, true)
}

func (c *common) openInvites(ctx context.Context, join bool) (out []string, err error) {
	var l api.Invites
	err = api.Call(ctx, c.dirs.Run, http.MethodGet, "/v1/invites", nil, &l)
	for _, i := range l.Of(join).Invites {
		if i.State(l.Now) == "open" {
			out = append(out, i.ID)
		}
	}
	return out, err
}

func (c *common) memberNames(ctx context.Context, _ *cobra.Command) (out []string, err error) {
	list, err := c.nodes(ctx)
	for i := range list {
		out = append(out, list[i].Name)
	}
	return out, err
}

func (c *common) courseNames(ctx context.Context, _ *cobra.Command) (out []string, err error) {
	_, all, err := allCourses(ctx, c)
	for i := range all {
		out = append(out, all[i].Name)
	}
	return out, err
}

func (c *common) sessionNames(ctx context.Context, _ *cobra.Command) (out []string, err error) {
	var l webconsole.Sessions
	err = api.Call(ctx, c.dirs.Run, http.MethodGet, "/v1/console/sessions", nil, &l)
	for _, s := range l.Sessions {
		out = append(out, s.ID)
	}
	return out, err
}

func (c *common) userNames(ctx context.Context, _ *cobra.Command) ([]string, error) {
	return usersWhere(ctx, c, func(api.Kubeconfig) bool { return true })
}

// usersWhere are those whose access can be used, and of which in is true.
func usersWhere(ctx context.Context, c *common, in func(api.Kubeconfig) bool) (out []string, err error) {
	var l api.Kubeconfigs
	err = api.Call(ctx, c.dirs.Run, http.MethodGet, "/v1/kubeconfigs", nil, &l)
	for _, k := range l.Kubeconfigs {
		if (k.State == "active" || k.State == "unused") && in(k) {
			out = append(out, k.User)
		}
	}
	return out, err
}

func (c *common) scraperNames(ctx context.Context, _ *cobra.Command) (out []string, err error) {
	var l api.MetricsAccesses
	err = api.Call(ctx, c.dirs.Run, http.MethodGet, "/v1/metrics/access", nil, &l)
	for _, a := range l.Accesses {
		out = append(out, a.Name)
	}
	return out, err
}

func (c *common) vclusterNames(ctx context.Context, _ *cobra.Command) (out []string, err error) {
	var all []vcluster.View
	err = api.Call(ctx, c.dirs.Run, http.MethodGet, "/v1/vclusters", nil, &all)
	for _, v := range all {
		out = append(out, v.Name)
	}
	return out, err
}

func (c *common) burstNames(ctx context.Context, _ *cobra.Command) (out []string, err error) {
	var all []burst.View
	err = api.Call(ctx, c.dirs.Run, http.MethodGet, "/v1/burst", nil, &all)
	for _, v := range all {
		out = append(out, v.Name)
	}
	return out, err
}
