package cli

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"slices"
	"strings"

	"github.com/spf13/cobra"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"

	"rivulet/appliance/api"
	"rivulet/appliance/config"
	"rivulet/appliance/engine/images"
	"rivulet/appliance/vcluster"
	"rivulet/offload/consumer"
)

func newImage(c *common) *cobra.Command {
	return group(&cobra.Command{Use: "image", Aliases: []string{"images"}, Short: "images of this device, without a registry"},
		newImagePush(c), newImageList(c), newImageRemove(c))
}

func (c *common) containerd() (*images.Containerd, error) {
	self, err := os.Executable()
	return &images.Containerd{State: c.dirs.State, Executable: self}, err
}

// pushed is the result of an image push.
type pushed struct {
	Images []string `json:"images"`
	// Peers pull the images from here when a pod of this cluster needs them.
	Peers []string `json:"peers,omitempty"`
	// Shared: pods of peers and of virtual clusters here may use them.
	Shared bool `json:"shared"`
	// kept is how many virtual clusters are here, which may not use them.
	kept int
}

func newImagePush(c *common) *cobra.Command {
	var name string
	var share, all bool
	var to []string
	cmd := &cobra.Command{
		Use:   "push FILE",
		Short: "import an image from a file into this device; peers fetch it from here",
		Long: "FILE is an archive of docker save, an archive of an OCI layout, or the folder of one.\n" +
			"A peer that runs a pod of this cluster fetches the image from here, through the tunnel; nothing is copied to peers in advance.\n" +
			"--to and --all check that this will work: they fail if a peer is not connected, or has another architecture than the image,\n" +
			"or if peerImages is false here.",
		Args: func(cmd *cobra.Command, args []string) error {
			if all && len(to) > 0 && len(args) == 1 {
				return usagef("--all names all peers; leave --to out")
			}
			return takes(1, "image push takes one file or folder; see: %[2]s --help")(cmd, args)
		},
		RunE: func(cmd *cobra.Command, args []string) error {
			if name != "" {
				full, err := images.Full(name)
				if err != nil {
					return usagef("--name: %w", err)
				}
				name = full
			}
			file, err := images.Inspect(args[0])
			if err != nil {
				return err
			}
			device, err := c.containerd()
			if err != nil {
				return err
			}
			var nodes []consumer.VirtualNode
			if all || len(to) > 0 {
				st, err := api.Get(cmd.Context(), c.dirs.Run)
				if err != nil {
					return err
				}
				if nodes, err = nodesOf(st, to); err != nil {
					return err
				}
				var in config.View
				if err := api.Call(cmd.Context(), c.dirs.Run, "GET", "/v1/config", nil, &in); err != nil {
					return err
				}
				if !in.Values.ImagesPass() {
					return fmt.Errorf("peerImages is false, so peers cannot fetch images from here; take that line out of %s, or leave --to and --all out", in.File)
				}
			}
			done := pushed{Shared: share}
			end := busy("bringing the image in")
			done.Images, err = device.Import(cmd.Context(), file, name, share)
			end()
			if err != nil {
				return err
			}
			if done.Peers, err = canFetch(cmd.Context(), device, done.Images, nodes); err != nil {
				return err
			}
			var have []vcluster.View
			if !share && api.Call(cmd.Context(), c.dirs.Run, http.MethodGet, "/v1/vclusters", nil, &have) == nil { // it need not run
				done.kept = len(have)
			}
			return result(cmd, c, done, printPushed)
		},
	}
	f := cmd.Flags()
	f.StringVar(&name, "name", "", "name the image NAME:TAG instead of the names in the file")
	f.BoolVar(&share, "share", false, "pods of virtual clusters and of peers here may use it, too")
	f.StringSliceVar(&to, "to", nil, "check that these peers can fetch it")
	f.BoolVar(&all, "all", false, "check it for all connected peers")
	return withOutput(c, cmd)
}

// nodesOf are the ready virtual nodes of peers: of the named ones, or of all.
func nodesOf(st api.Status, named []string) (out []consumer.VirtualNode, err error) {
	for _, n := range st.VirtualNodes {
		if n.Ready && (len(named) == 0 || slices.Contains(named, n.Name) || slices.Contains(named, n.Target)) {
			out = append(out, n)
		}
	}
	for _, name := range named {
		if !slices.ContainsFunc(out, func(n consumer.VirtualNode) bool { return n.Name == name || n.Target == name }) {
			return nil, fmt.Errorf("%s is no peer that runs pods of this cluster now; see: rivulet peers", name)
		}
	}
	return out, nil
}

// canFetch returns the names of the nodes, or an error with those whose architecture an image lacks.
func canFetch(ctx context.Context, device *images.Containerd, names []string, nodes []consumer.VirtualNode) (can []string, err error) {
	if len(nodes) == 0 {
		return nil, nil
	}
	held, err := device.Held(ctx)
	if err != nil {
		return nil, err
	}
	for _, n := range nodes {
		for _, h := range held {
			if slices.Contains(names, h.Name) && !slices.Contains(architectures(h), n.Architecture) {
				return nil, fmt.Errorf("%s is held here, but %s is of %s, and the image is for %s; build it for %s too", h.Name, n.Name, n.Architecture, dash(join(architectures(h))), n.Architecture)
			}
		}
		can = append(can, n.Name)
	}
	return can, nil
}

// architectures are those of an image's platforms, in the form of nodes: linux/arm/v7 is arm.
func architectures(h images.Held) (out []string) {
	for _, p := range h.Platforms {
		if parts := strings.Split(p, "/"); len(parts) > 1 && !slices.Contains(out, parts[1]) {
			out = append(out, parts[1])
		}
	}
	return out
}

func printPushed(out io.Writer, done pushed) error {
	for _, name := range done.Images {
		fmt.Fprintf(out, "%s is here\n", name)
	}
	if done.kept > 0 && !done.Shared {
		fmt.Fprintln(out, "the virtual clusters here may not use it; for them and for peers' pods: rivulet image push --share FILE; for those of a course: images in its file")
	}
	if len(done.Peers) > 0 {
		fmt.Fprintf(out, "fetched from here when a pod needs it: %s\n", join(done.Peers))
	}
	return nil
}

// heldImage is a line of image list.
type heldImage struct {
	images.Held
	Pods []string `json:"pods"` // of this cluster and of tenants here, as namespace/name
}

func newImageList(c *common) *cobra.Command {
	return withOutput(c, &cobra.Command{
		Use: "list", Short: "the images of this device: size, architectures, the pods that use them", Args: noArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			list, err := c.images(cmd.Context())
			if err != nil {
				return err
			}
			return result(cmd, c, list, func(out io.Writer, list []heldImage) error { return printImages(out, list, c.output == "wide") })
		},
	}, "wide")
}

// images are those of this device, with the pods that use them, as far as the API server answers.
func (c *common) images(ctx context.Context) ([]heldImage, error) {
	device, err := c.containerd()
	if err != nil {
		return nil, err
	}
	held, err := device.Held(ctx)
	if err != nil {
		return nil, err
	}
	var pods []corev1.Pod
	if client, err := c.client(); err == nil {
		if list, err := client.CoreV1().Pods("").List(ctx, metav1.ListOptions{ResourceVersion: "0", FieldSelector: "status.phase!=Succeeded,status.phase!=Failed"}); err == nil {
			pods = list.Items
		}
	}
	return withPods(held, pods), nil
}

func withPods(held []images.Held, pods []corev1.Pod) []heldImage {
	users := map[string][]string{}
	for i := range pods {
		p := &pods[i]
		for _, containers := range [][]corev1.Container{p.Spec.InitContainers, p.Spec.Containers} {
			for _, k := range containers {
				name, err := images.Full(k.Image)
				if pod := p.Namespace + "/" + p.Name; err == nil && !slices.Contains(users[name], pod) {
					users[name] = append(users[name], pod)
				}
			}
		}
	}
	out := make([]heldImage, 0, len(held))
	for _, h := range held {
		out = append(out, heldImage{h, users[h.Name]})
	}
	return out
}

func printImages(out io.Writer, list []heldImage, wide bool) error {
	head := "IMAGE\tSIZE\tARCH\tKEPT\tPODS"
	if wide {
		head += "\tSHARED\tCONTAINERS\tDIGEST\tUSED BY"
	}
	return table(out, "no images; bring one: rivulet image push FILE", head, list, func(i heldImage) []any {
		cells := []any{i.Name, size(uint64(i.Bytes)), dash(join(architectures(i.Held))), i.Kept, len(i.Pods)}
		if wide {
			cells = append(cells, i.Shared, i.Containers, i.Digest, dash(join(i.Pods)))
		}
		return cells
	})
}

func newImageRemove(c *common) *cobra.Command {
	var force, unused bool
	cmd := &cobra.Command{
		Use: "rm NAME ... | --unused", Aliases: []string{"remove"}, Short: "remove images that no pod uses",
		Long: "An image in use by a pod of this cluster, here or away, or by a container of this device, needs --force.\n" +
			"--unused removes all images that no container of this device uses; pushed images stay.",
		Args: func(cmd *cobra.Command, args []string) error {
			if (len(args) == 0) != unused {
				return usagef("image rm takes names, or --unused; see: rivulet image list, and: %s --help", cmd.CommandPath())
			}
			return nil
		},
		RunE: func(cmd *cobra.Command, args []string) error {
			if unused {
				return c.removeUnused(cmd.Context(), cmd.OutOrStdout())
			}
			list, err := c.images(cmd.Context())
			if err != nil {
				return err
			}
			device, err := c.containerd()
			if err != nil {
				return err
			}
			var errs []error
			var all []string
			for _, name := range args {
				found, err := removable(list, name, force)
				if err != nil {
					errs = append(errs, err)
					continue
				}
				all = append(all, found)
			}
			if len(all) > 0 {
				if err := confirm(cmd, "remove from this device "+strings.Join(all, ", "), ""); err != nil {
					return err
				}
			}
			for _, found := range all {
				if err := device.Remove(cmd.Context(), found); err != nil {
					errs = append(errs, err)
					continue
				}
				fmt.Fprintf(cmd.OutOrStdout(), "%s is removed\n", found)
			}
			return errors.Join(errs...)
		},
	}
	yesFlag(cmd)
	cmd.Flags().BoolVar(&force, "force", false, "even if pods use it: they continue, but cannot restart without it")
	cmd.Flags().BoolVar(&unused, "unused", false, "all images that no container of this device uses, except pushed ones")
	return cmd
}

func (c *common) removeUnused(ctx context.Context, out io.Writer) error {
	device, err := c.containerd()
	if err != nil {
		return err
	}
	end := busy("removing images")
	names, err := device.RemoveUnused(ctx)
	end()
	for _, name := range names {
		fmt.Fprintf(out, "%s is removed\n", name)
	}
	if err == nil && len(names) == 0 {
		fmt.Fprintln(out, "no image is unused; those that were pushed stay: rivulet image list")
	}
	return err
}

// unused are pushed images that no pod and no container uses, and no object creates pods of.
func (c *common) unused(ctx context.Context, client kubernetes.Interface) ([]string, error) {
	list, err := c.images(ctx)
	if err != nil {
		return nil, err
	}
	deployments, err1 := client.AppsV1().Deployments("").List(ctx, metav1.ListOptions{})
	stateful, err2 := client.AppsV1().StatefulSets("").List(ctx, metav1.ListOptions{})
	daemons, err3 := client.AppsV1().DaemonSets("").List(ctx, metav1.ListOptions{})
	jobs, err4 := client.BatchV1().Jobs("").List(ctx, metav1.ListOptions{})
	crons, err5 := client.BatchV1().CronJobs("").List(ctx, metav1.ListOptions{})
	pods, err6 := client.CoreV1().Pods("").List(ctx, metav1.ListOptions{}) // finished ones, too
	if err := errors.Join(err1, err2, err3, err4, err5, err6); err != nil {
		return nil, err
	}
	makers := pods.Items
	for i := range deployments.Items {
		makers = append(makers, corev1.Pod{Spec: deployments.Items[i].Spec.Template.Spec})
	}
	for i := range stateful.Items {
		makers = append(makers, corev1.Pod{Spec: stateful.Items[i].Spec.Template.Spec})
	}
	for i := range daemons.Items {
		makers = append(makers, corev1.Pod{Spec: daemons.Items[i].Spec.Template.Spec})
	}
	for i := range jobs.Items {
		makers = append(makers, corev1.Pod{Spec: jobs.Items[i].Spec.Template.Spec})
	}
	for i := range crons.Items {
		makers = append(makers, corev1.Pod{Spec: crons.Items[i].Spec.JobTemplate.Spec.Template.Spec})
	}
	return unusedOf(list, makers), nil
}

// unusedOf are the pushed images that none of the pods has, by name.
func unusedOf(list []heldImage, pods []corev1.Pod) (names []string) {
	var held []images.Held
	for _, i := range list {
		held = append(held, i.Held)
	}
	used := withPods(held, pods)
	for _, i := range used {
		if i.Kept && !slices.ContainsFunc(used, func(o heldImage) bool { return o.Digest == i.Digest && (len(o.Pods) > 0 || o.Containers > 0) }) {
			names = append(names, i.Name)
		}
	}
	return names
}

// removable is the name in containerd of an image that may be removed.
func removable(list []heldImage, name string, force bool) (string, error) {
	full, err := images.Full(name)
	if err != nil {
		return "", err
	}
	i := slices.IndexFunc(list, func(h heldImage) bool { return h.Name == full || h.Name == name })
	switch {
	case i < 0:
		return "", fmt.Errorf("there is no image %s here; see: rivulet image list", name)
	case force:
	case len(list[i].Pods) > 0:
		return "", fmt.Errorf("%s is used by %s; delete the pods first, or add --force", list[i].Name, strings.Join(list[i].Pods, ", "))
	case list[i].Containers > 0:
		return "", fmt.Errorf("%s is used by %d containers of this device; see: rivulet crictl ps, or add --force", list[i].Name, list[i].Containers)
	}
	return list[i].Name, nil
}
