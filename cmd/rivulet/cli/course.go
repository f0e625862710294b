package cli

import (
	"context"
	"encoding/csv"
	"errors"
	"fmt"
	"io"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"golang.org/x/sync/errgroup"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/client-go/dynamic"

	"rivulet/appliance/api"
	"rivulet/appliance/vcluster"
	"rivulet/appliance/vcluster/courses"
	"rivulet/appliance/vcluster/objects"
	"rivulet/fabric/changes"
	"rivulet/offload/policy"
)

func newCourse(c *common) *cobra.Command {
	return group(&cobra.Command{
		Use: "course", Short: "courses: virtual clusters with the same settings, a cap for all of them, and an end",
		Long: "A course is an object of this cluster; make and change it with: rivulet vcluster create -f FILE.\nIts members are virtual clusters, COURSE-NAME for each name, which all commands of rivulet vcluster take.",
	}, newCourseList(c), newCourseStatus(c), newCourseReport(c), newCourseSleep(c), newCourseKubeconfigs(c), newCourseDelete(c))
}

func newCourseList(c *common) *cobra.Command {
	return withOutput(c, &cobra.Command{
		Use: "list", Short: "list the courses of this cluster", Args: noArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			_, all, err := allCourses(cmd.Context(), c)
			if err != nil {
				return err
			}
			return result(cmd, c, all, func(out io.Writer, all []courses.Course) error {
				return table(out, "no course; make one with: rivulet vcluster create -f FILE", "NAMESPACE\tNAME\tMEMBERS\tUSABLE\tEXPIRES\tREASON", all, func(k courses.Course) []any {
					ends := "-"
					if k.Spec.Expires != nil {
						ends = k.Spec.Expires.UTC().Format(time.DateTime)
					}
					return []any{k.Namespace, k.Name, k.Status.Members, k.Status.Usable, ends, dash(reasons(k))}
				})
			})
		},
	})
}

// reasons are the messages of the conditions that somebody should read.
func reasons(k courses.Course) string {
	var out []string
	for _, one := range k.Status.Conditions {
		if (one.Type == courses.Ready) == (one.Status == metav1.ConditionFalse) && one.Message != "" && (one.Type != courses.Ready || one.Reason != "Expired") { // Expiring says more
			out = append(out, one.Message)
		}
	}
	return strings.Join(out, "; ")
}

// allCourses are the courses of this cluster, by namespace and name.
func allCourses(ctx context.Context, c *common) (dynamic.Interface, []courses.Course, error) {
	cfg, err := c.usable(ctx)
	if err != nil {
		return nil, nil, err
	}
	client, err := dynamic.NewForConfig(cfg)
	if err != nil {
		return nil, nil, err
	}
	list, err := client.Resource(courses.Resource).List(ctx, metav1.ListOptions{})
	if err != nil {
		return nil, nil, fmt.Errorf("the courses cannot be read: %w; see: rivulet status", err)
	}
	out := []courses.Course{}
	for i := range list.Items {
		one, err := courses.FromAPI(&list.Items[i])
		if err != nil {
			return nil, nil, fmt.Errorf("course %s cannot be read: %w; see: rivulet kubectl get course -A -o yaml", list.Items[i].GetName(), err)
		}
		out = append(out, *one)
	}
	slices.SortFunc(out, func(a, b courses.Course) int { return strings.Compare(a.Namespace+"/"+a.Name, b.Namespace+"/"+b.Name) })
	return client, out, nil
}

// oneCourse finds a course by NAME or NAMESPACE/NAME, and the names of its virtual clusters.
func oneCourse(ctx context.Context, c *common, name string) (client dynamic.Interface, k courses.Course, members []string, err error) {
	client, all, err := allCourses(ctx, c)
	if err != nil {
		return nil, k, nil, err
	}
	all = slices.DeleteFunc(all, func(k courses.Course) bool { return k.Name != name && k.Namespace+"/"+k.Name != name })
	switch len(all) {
	case 0:
		return nil, k, nil, fmt.Errorf("there is no course %.60s; see: rivulet course list", name)
	case 1:
	default:
		return nil, k, nil, fmt.Errorf("there are %d courses %s; name one as NAMESPACE/NAME", len(all), name)
	}
	list, err := client.Resource(objects.Resource).Namespace(all[0].Namespace).List(ctx, metav1.ListOptions{LabelSelector: courses.Label + "=" + all[0].Name})
	if err != nil {
		return nil, k, nil, err
	}
	for i := range list.Items {
		if metav1.IsControlledBy(&list.Items[i], &all[0]) {
			members = append(members, list.Items[i].GetName())
		}
	}
	return client, all[0], members, nil
}

// courseStatus is a course with its virtual clusters.
type courseStatus struct {
	courses.Course
	VClusters []vcluster.View `json:"vclusters"`
}

func statusOfCourse(ctx context.Context, c *common, name string) (st courseStatus, err error) {
	_, k, members, err := oneCourse(ctx, c, name)
	if err != nil {
		return st, err
	}
	var all []vcluster.View
	if err := requestVCluster(ctx, c, http.MethodGet, "", nil, &all); err != nil {
		return st, err
	}
	return courseStatus{k, slices.DeleteFunc(all, func(v vcluster.View) bool { return !slices.Contains(members, v.Name) })}, nil
}

func newCourseStatus(c *common) *cobra.Command {
	return withOutput(c, &cobra.Command{
		Use: "status COURSE", Short: "show a course and its members", Args: oneName,
		Long: "Exit code 0: all members can be used; 3: not all.",
		RunE: func(cmd *cobra.Command, args []string) error {
			st, err := statusOfCourse(cmd.Context(), c, args[0])
			if err != nil {
				return err
			}
			if err := result(cmd, c, st, printCourse); err != nil {
				return err
			}
			if !meta.IsStatusConditionTrue(st.Status.Conditions, courses.Ready) {
				return &exitError{code: exitNotReady}
			}
			return nil
		},
	})
}

func printCourse(out io.Writer, st courseStatus) error {
	limit := []string{}
	for name, q := range st.Spec.Cap {
		limit = append(limit, string(name)+" "+q.String())
	}
	slices.Sort(limit)
	ends := "never"
	if st.Spec.Expires != nil {
		ends = st.Spec.Expires.UTC().Format(time.DateTime)
	}
	rows := [][2]string{
		{"course", st.Namespace + "/" + st.Name}, {"members", fmt.Sprintf("%d, %d can be used", st.Status.Members, st.Status.Usable)}, {"cap", dash(strings.Join(limit, ", "))},
		{"parent", dash(st.Spec.Parent)}, {"expires", ends}, {"reason", dash(reasons(st.Course))},
	}
	if len(st.Status.Unlisted) > 0 {
		rows = append(rows, [2]string{"not listed", strings.Join(st.Status.Unlisted, ", ") + "; to delete one: rivulet kubectl -n " + st.Namespace + " delete virtualcluster NAME"})
	}
	if err := pairs(out, rows); err != nil {
		return err
	}
	return printVClusters(out, st.VClusters, false)
}

func newCourseReport(c *common) *cobra.Command {
	return withOutput(c, &cobra.Command{
		Use: "report COURSE", Short: "show what each member has had since its creation: core hours, memory and storage over time", Args: oneName,
		Long: "Requests of pods and claims on this device count, whether they were used or not. Members that are deleted are not listed.\n" +
			"With -o csv it is for a spreadsheet. After a power cut the last hour may be missing.",
		RunE: func(cmd *cobra.Command, args []string) error {
			st, err := statusOfCourse(cmd.Context(), c, args[0])
			if err != nil {
				return err
			}
			all := st.VClusters
			cells := func(v vcluster.View) []any {
				n := func(f float64) string { return strconv.FormatFloat(f, 'f', 2, 64) }
				return []any{v.Name, v.Created.UTC().Format(time.RFC3339), n(v.Consumed.Awake), n(v.Consumed.CPU), n(v.Consumed.Memory), n(v.Consumed.Storage)}
			}
			if c.output != "csv" {
				return result(cmd, c, all, func(out io.Writer, all []vcluster.View) error {
					return table(out, "no member", "MEMBER\tCREATED\tAWAKE HOURS\tCORE HOURS\tMEMORY GIB HOURS\tSTORAGE GIB HOURS", all, cells)
				})
			}
			w := csv.NewWriter(cmd.OutOrStdout())
			rows := [][]string{{"member", "created", "awake_hours", "core_hours", "memory_gib_hours", "storage_gib_hours"}}
			for _, v := range all {
				var row []string
				for _, cell := range cells(v) {
					row = append(row, fmt.Sprint(cell))
				}
				rows = append(rows, row)
			}
			return w.WriteAll(rows)
		},
	}, "csv")
}

func newCourseSleep(c *common) *cobra.Command {
	return &cobra.Command{
		Use: "sleep COURSE", Short: "end the control planes of all members now; the next request starts each again", Args: oneName,
		RunE: func(cmd *cobra.Command, args []string) error {
			_, _, members, err := oneCourse(cmd.Context(), c, args[0])
			if err != nil {
				return err
			}
			defer busy("waiting for the members")()
			err = together(members, func(name string) error {
				return api.CallWithin(cmd.Context(), vclusterTimeout, c.dirs.Run, http.MethodPost, "/v1/vclusters"+inPath(name)+"/sleep", nil, nil)
			})
			if err != nil {
				return err
			}
			return printf(cmd, "%d members sleep\n", len(members))
		},
	}
}

// together calls f for all names at once.
func together(names []string, f func(name string) error) error {
	errs := make([]error, len(names))
	var all errgroup.Group
	for i, name := range names {
		all.Go(func() error { errs[i] = f(name); return nil })
	}
	_ = all.Wait() // errs has them
	return errors.Join(errs...)
}

func newCourseKubeconfigs(c *common) *cobra.Command {
	cmd := newVClusterKubeconfig(c)
	give, long := cmd.RunE, cmd.Long
	cmd.Use, cmd.Short, cmd.Long = "kubeconfigs COURSE --dir DIR", "make a kubeconfig for each member's user, for laptops on the LAN", long
	cmd.Args = func(cmd *cobra.Command, args []string) error {
		if err := oneName(cmd, args); err != nil {
			return err
		}
		if !cmd.Flags().Changed("dir") && !cmd.Flags().Changed("link") {
			return usagef("several kubeconfigs need a folder: --dir DIR, or --link; see: %s --help", cmd.CommandPath())
		}
		return nil
	}
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		_, _, members, err := oneCourse(cmd.Context(), c, args[0])
		if err != nil {
			return err
		}
		if len(members) == 0 {
			return fmt.Errorf("course %s has no members yet; see: rivulet course status %[1]s", args[0])
		}
		return give(cmd, members)
	}
	_ = cmd.Flags().MarkHidden("all") // all members are meant
	return cmd
}

func newCourseDelete(c *common) *cobra.Command {
	cmd := &cobra.Command{
		Use: "delete COURSE", Short: "delete a course with all its members and their content", Args: oneName,
		RunE: func(cmd *cobra.Command, args []string) error {
			ctx := cmd.Context()
			client, k, members, err := oneCourse(ctx, c, args[0])
			if err != nil {
				return err
			}
			if err := confirm(cmd, fmt.Sprintf("delete course %s with its %d virtual clusters and all that is in them", k.Name, len(members)), "its members: "+strings.Join(members, ", ")); err != nil {
				return err
			}
			defer busy("deleting")()
			foreground := metav1.DeletePropagationForeground
			err = client.Resource(courses.Resource).Namespace(k.Namespace).Delete(ctx, k.Name, metav1.DeleteOptions{PropagationPolicy: &foreground})
			for err == nil {
				if _, err = client.Resource(courses.Resource).Namespace(k.Namespace).Get(ctx, k.Name, metav1.GetOptions{}); err == nil && !changes.Wait(ctx, time.Second) {
					return fmt.Errorf("%w; the deletion goes on, see: rivulet course list", ctx.Err())
				}
			}
			if !apierrors.IsNotFound(err) {
				return err
			}
			return printf(cmd, "%s is deleted, with %d virtual clusters\n", k.Name, len(members))
		},
	}
	yesFlag(cmd)
	return cmd
}

// createFrom applies the Courses and VirtualClusters of a file, and waits until they can be used.
func createFrom(cmd *cobra.Command, c *common, file string) error {
	in, err := input(cmd, file, "name a file with objects of kind Course or VirtualCluster")
	if err != nil {
		return err
	}
	defer in.Close()
	raw, err := io.ReadAll(io.LimitReader(in, 4<<20))
	if err != nil {
		return err
	}
	list, err := policy.Decode(raw)
	if err != nil {
		return fmt.Errorf("%s: %w; it has YAML documents of kind Course or VirtualCluster", file, errors.Unwrap(err))
	}
	list = slices.DeleteFunc(list, func(u *unstructured.Unstructured) bool { return len(u.Object) == 0 })
	for _, u := range list {
		if u.GroupVersionKind().Group != courses.Resource.Group || u.GetKind() != courses.Kind && u.GetKind() != objects.Kind {
			return fmt.Errorf("%s: %.60q is neither a Course nor a VirtualCluster of %s; for other objects use: rivulet kubectl apply -f", file, u.GetKind(), courses.Resource.GroupVersion())
		}
		if u.GetNamespace() == "" {
			u.SetNamespace(metav1.NamespaceDefault)
		}
	}
	if len(list) == 0 {
		return fmt.Errorf("%s: there is no object in it; it has YAML documents of kind Course or VirtualCluster", file)
	}
	if err := mistakes(file, list, time.Now()); err != nil {
		return err
	}
	ctx := cmd.Context()
	cfg, err := c.usable(ctx)
	if err != nil {
		return err
	}
	client, err := dynamic.NewForConfig(cfg)
	if err != nil {
		return err
	}
	of := func(u *unstructured.Unstructured) dynamic.ResourceInterface {
		if u.GetKind() == courses.Kind {
			return client.Resource(courses.Resource).Namespace(u.GetNamespace())
		}
		return client.Resource(objects.Resource).Namespace(u.GetNamespace())
	}
	for _, u := range list {
		if _, err := of(u).Apply(ctx, u.GetName(), u, metav1.ApplyOptions{FieldManager: "rivulet-cli"}); err != nil {
			return fmt.Errorf("%s: %w", file, err)
		}
	}
	defer busy("waiting until they can be used")()
	for _, u := range list {
		for {
			now, err := of(u).Get(ctx, u.GetName(), metav1.GetOptions{})
			if err != nil {
				return err
			}
			k, err := courses.FromAPI(now) // both kinds have conditions in the same place
			if err != nil {
				return err
			}
			ready := meta.FindStatusCondition(k.Status.Conditions, courses.Ready)
			if ready != nil && ready.ObservedGeneration == now.GetGeneration() {
				switch {
				case ready.Status == metav1.ConditionTrue:
				case ready.Reason == "Invalid" || ready.Reason == "NameTaken" || ready.Reason == "Failed":
					return fmt.Errorf("%s %s: %s", strings.ToLower(u.GetKind()), u.GetName(), ready.Message)
				default:
					ready = nil
				}
				if ready != nil {
					break
				}
			}
			if !changes.Wait(ctx, time.Second) {
				return fmt.Errorf("%w; it goes on, see: rivulet course list, rivulet vcluster list", ctx.Err())
			}
		}
		if err := printf(cmd, "%s %s can be used\n", strings.ToLower(u.GetKind()), u.GetName()); err != nil {
			return err
		}
	}
	return nil
}

// mistakes is the error with a line for each field of a file that cannot be what it is.
func mistakes(file string, list []*unstructured.Unstructured, now time.Time) error {
	var all []error
	for _, u := range list {
		var faults []error
		if u.GetKind() == courses.Kind {
			faults = courses.Faults(u, now)
		} else {
			spec, _ := u.Object["spec"].(map[string]any)
			faults = objects.Faults(u.GetName(), "spec", spec)
		}
		for _, fault := range faults {
			all = append(all, fmt.Errorf("%s: %s %s: %w", file, strings.ToLower(u.GetKind()), u.GetName(), fault))
		}
	}
	return errors.Join(all...)
}
