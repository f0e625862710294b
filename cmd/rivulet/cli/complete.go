package cli

import (
	"context"
	"time"

	"github.com/spf13/cobra"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"

	"rivulet/appliance/api"
)

// What is completed is asked within a moment: a shell that hangs is worse than no completion.
const completionTime = 2 * time.Second

// objects names what list finds, for a completion. Whoever may not read gets none.
func (c *common) objects(list func(context.Context, kubernetes.Interface) ([]string, error)) ([]string, cobra.ShellCompDirective) {
	ctx, cancel := context.WithTimeout(context.Background(), completionTime)
	defer cancel()
	client, err := c.client()
	if err != nil {
		return nil, cobra.ShellCompDirectiveNoFileComp
	}
	names, err := list(ctx, client)
	if err != nil {
		return nil, cobra.ShellCompDirectiveNoFileComp
	}
	return names, cobra.ShellCompDirectiveNoFileComp
}

// completePods completes NAMESPACE/NAME, or NAME with --namespace.
func (c *common) completePods(cmd *cobra.Command, args []string, _ string) ([]string, cobra.ShellCompDirective) {
	if len(args) > 0 {
		return nil, cobra.ShellCompDirectiveNoFileComp
	}
	namespace, _ := cmd.Flags().GetString("namespace")
	return c.objects(func(ctx context.Context, client kubernetes.Interface) (names []string, err error) {
		pods, err := client.CoreV1().Pods(namespace).List(ctx, metav1.ListOptions{ResourceVersion: "0"})
		if err != nil {
			return nil, err
		}
		for _, p := range pods.Items {
			if namespace == "" {
				p.Name = p.Namespace + "/" + p.Name
			}
			names = append(names, p.Name)
		}
		return names, nil
	})
}

func (c *common) namespaces() ([]string, cobra.ShellCompDirective) {
	return c.objects(func(ctx context.Context, client kubernetes.Interface) (names []string, err error) {
		list, err := client.CoreV1().Namespaces().List(ctx, metav1.ListOptions{ResourceVersion: "0"})
		if err != nil {
			return nil, err
		}
		for _, n := range list.Items {
			names = append(names, n.Name)
		}
		return names, nil
	})
}

// completeNamespaces completes the values of a flag.
func (c *common) completeNamespaces(cmd *cobra.Command, flag string) {
	_ = cmd.RegisterFlagCompletionFunc(flag, func(*cobra.Command, []string, string) ([]string, cobra.ShellCompDirective) { return c.namespaces() })
}

// completeFirst gives a verb a completion of its first word.
func completeFirst(cmd *cobra.Command, names func() ([]string, cobra.ShellCompDirective)) {
	cmd.ValidArgsFunction = func(_ *cobra.Command, args []string, _ string) ([]string, cobra.ShellCompDirective) {
		if len(args) > 0 {
			return nil, cobra.ShellCompDirectiveNoFileComp
		}
		return names()
	}
}

// peerNames are those that the supervisor has found.
func (c *common) peerNames() ([]string, cobra.ShellCompDirective) {
	ctx, cancel := context.WithTimeout(context.Background(), completionTime)
	defer cancel()
	st, err := api.Get(ctx, c.dirs.Run)
	if err != nil {
		return nil, cobra.ShellCompDirectiveNoFileComp
	}
	var names []string
	for _, p := range st.Peers {
		if p.Name != "" {
			names = append(names, p.Name)
		}
	}
	return names, cobra.ShellCompDirectiveNoFileComp
}

// complete gives the verbs whose first word is a peer or a namespace their completions.
func (c *common) complete(root *cobra.Command) {
	of := map[string]func() ([]string, cobra.ShellCompDirective){"offload": c.namespaces, "unoffload": c.namespaces, "open": c.namespaces, "close": c.namespaces}
	for _, verb := range []string{"peer", "approve", "deny", "unpeer", "cordon", "uncordon", "drain", "doctor peer"} {
		of[verb] = c.peerNames
	}
	each(root, func(cmd *cobra.Command) {
		if names, ok := of[path(cmd)]; ok && cmd.ValidArgsFunction == nil {
			completeFirst(cmd, names)
		}
		if f := cmd.Flags().Lookup("to"); f != nil {
			_ = cmd.RegisterFlagCompletionFunc("to", func(*cobra.Command, []string, string) ([]string, cobra.ShellCompDirective) { return c.peerNames() })
		}
	})
}
