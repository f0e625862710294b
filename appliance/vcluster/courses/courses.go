// Package courses manages Courses: objects of the home cluster's API, each of which has virtual clusters with the same
// settings, a bound for all of them together, and an end (docs/design/courses.md).
//
//	API server ── watch ──▶ sync ──▶ VirtualCluster objects, which package objects turns into virtual clusters
//	     ▲                   │  ◀── states of these
//	     └─ status, events   └──▶ inside each: manifests once, an event before the end
//
// It reads Courses and VirtualClusters. It alone writes the status and events of Courses, their VirtualClusters, and, once
// its end and the time after it are over, it deletes a Course; owner references delete its VirtualClusters. That needs a
// clock that NTP or peers confirm, and that this process has seen the Course paused for as long. Restart: all is compared
// again, and the time paused is in the status, at most ten minutes behind. A Course that cannot be read, a name that is taken
// off its list, and a clock that is not plausible end nothing. Failure as the user sees it: the condition Ready, and an
// event.
package courses

import (
	"context"
	_ "embed"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"slices"
	"strings"
	"sync"
	"time"

	"golang.org/x/sync/errgroup"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	utilnet "k8s.io/apimachinery/pkg/util/net"
	"k8s.io/client-go/discovery/cached/memory"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/restmapper"
	"k8s.io/client-go/tools/clientcmd"

	"rivulet/appliance/addons/customresource"
	"rivulet/appliance/machine/clock"
	"rivulet/appliance/vcluster"
	"rivulet/appliance/vcluster/objects"
	"rivulet/offload/foreign"
	"rivulet/offload/policy"
)

//go:embed crd.yaml
var crd []byte

// Config is the input of Run. All of it is required.
type Config struct {
	API *rest.Config
	// Clusters are the virtual clusters.
	Clusters
	// Images are those of this device.
	Images Images
	// Clock is this device's.
	Clock func() clock.Status
	Log   *slog.Logger
}

// Clusters are the virtual clusters; vcluster.Manager has them.
type Clusters interface {
	// StatesChanged reports changes of the states.
	StatesChanged() (<-chan struct{}, func())
	// Kubeconfig is that of an administrator inside.
	Kubeconfig(name string) ([]byte, error)
}

const (
	// gather is how long changes are collected before they are handled together.
	gather = 300 * time.Millisecond
	// checkEvery is the interval of checks of the time.
	checkEvery = time.Minute
	// insideLimit bounds the work inside one member.
	insideLimit = time.Minute
	// fieldManager owns the fields of VirtualClusters that their Course sets.
	fieldManager = policy.FieldManager + "-course"
)

// controller is the running component. One goroutine does all but the work inside members.
type controller struct {
	Config
	customresource.Objects
	applied map[types.UID]string // what was applied to a VirtualCluster, with its generation then
	pauses  pauses

	work   sync.WaitGroup
	images imageSet

	mu     sync.Mutex
	busy   map[types.UID]bool  // VirtualClusters inside which something is done
	failed map[types.UID]error // the last error of that
}

// Objects is the input of package objects.
type Objects = objects.Config

// RunAll runs package objects, and Courses on top of it, until ctx ends or one of them fails.
func RunAll(ctx context.Context, cfg Objects, images Images, now func() clock.Status, ready func()) error {
	all, ctx := errgroup.WithContext(ctx)
	served := make(chan struct{})
	all.Go(func() error { return objects.Run(ctx, cfg, func() { close(served) }) })
	all.Go(func() error {
		select {
		case <-ctx.Done():
			return nil
		case <-served:
		}
		return Run(ctx, Config{API: cfg.API, Clusters: cfg.Clusters, Images: images, Clock: now, Log: cfg.Log}, ready)
	})
	return all.Wait()
}

// Run manages Courses until ctx ends. It calls ready after the first pass over all objects.
func Run(ctx context.Context, cfg Config, ready func()) error {
	changed, stop := cfg.StatesChanged()
	defer stop()
	c := &controller{Config: cfg, applied: map[types.UID]string{}, pauses: pauses{}, busy: map[types.UID]bool{}, failed: map[types.UID]error{}}
	defer c.work.Wait()
	c.images.poke = make(chan struct{}, 1)
	brought, end := c.images.changed.Changed()
	defer end()
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	c.work.Go(func() { c.images.run(ctx, cfg.Images) })
	kind := customresource.Kind{Name: "courses", Definition: crd, Resource: Resource, Gather: gather}
	return customresource.Run(ctx, cfg.API, kind, func(o customresource.Objects) customresource.Loop {
		c.Objects = o
		return customresource.Loop{Sync: c.sync, Changed: []<-chan struct{}{changed, brought}, Every: checkEvery, Log: cfg.Log}
	}, ready)
}

func (c *controller) sync(ctx context.Context) error {
	all := map[string]*Course{}
	named := map[string]*Course{} // whose images are wanted
	unread := false
	for _, item := range c.Store.List() {
		course, err := FromAPI(item.(*unstructured.Unstructured))
		if err != nil {
			c.Log.Warn("a Course is unreadable", "name", item.(*unstructured.Unstructured).GetName(), "err", err)
			unread = true
			continue
		}
		all[course.key()] = course
		if course.DeletionTimestamp == nil {
			named[course.key()] = course
		}
	}
	c.images.want(named, !unread)
	maps.DeleteFunc(c.pauses, func(id types.UID, _ pause) bool {
		for _, course := range all {
			if course.UID == id {
				return false
			}
		}
		return true
	})
	if len(all) == 0 {
		return nil
	}
	list, err := c.Dynamic.Resource(objects.Resource).List(ctx, metav1.ListOptions{LabelSelector: Label})
	if err != nil {
		return fmt.Errorf("courses: %w", err)
	}
	var errs []error
	for _, key := range slices.Sorted(maps.Keys(all)) {
		course := all[key]
		if course.DeletionTimestamp != nil {
			continue
		}
		mine := map[string]*unstructured.Unstructured{}
		for i := range list.Items {
			if u := &list.Items[i]; metav1.IsControlledBy(u, course) {
				mine[u.GetName()] = u
			}
		}
		errs = append(errs, c.one(ctx, course, all, mine))
	}
	return errors.Join(errs...)
}

// one makes one Course what it says; mine are its VirtualClusters.
func (c *controller) one(ctx context.Context, course *Course, all map[string]*Course, mine map[string]*unstructured.Unstructured) error {
	names, err := course.members()
	groups, e := course.groups(all)
	keep, e2 := course.keep()
	if err := errors.Join(append(templateFaults(map[string]any{"template": course.Spec.Template}), err, e, e2)...); err != nil {
		return c.status(ctx, course, mine, Status{PausedFor: course.Status.PausedFor}, condition(Ready, false, "Invalid", err.Error()))
	}
	at := running
	now := c.Clock()
	if now.Plausible {
		at = course.phase(now.Now, keep)
	}
	paused := c.pauses.count(course, at)
	if at == over && (paused <= keep || !now.Right()) { // no phase is left out, also with keep 0s
		at = expired
	}
	if at == over {
		c.Log.Info("a course is over; it is deleted with its members", "course", course.key())
		c.Recorder.Event(reference(course), corev1.EventTypeNormal, "Deleted", "it is over; it is deleted with its members")
		err := c.Dynamic.Resource(Resource).Namespace(course.Namespace).Delete(ctx, course.Name, metav1.DeleteOptions{Preconditions: &metav1.Preconditions{UID: &course.UID, ResourceVersion: &course.ResourceVersion}})
		if apierrors.IsNotFound(err) {
			return nil
		}
		return err
	}
	spec, err := course.spec(groups, at == expired)
	if err != nil {
		return err
	}
	unlisted := slices.DeleteFunc(slices.Sorted(maps.Keys(mine)), func(name string) bool { return slices.Contains(names, name) })
	var faults []error
	for _, name := range append(slices.Clone(names), unlisted...) {
		faults = append(faults, c.apply(ctx, course, name, mine, spec))
	}
	for _, u := range mine {
		c.inside(ctx, course, u, at)
		faults = append(faults, c.failure(u))
	}
	conditions := []metav1.Condition{condition(Expiring, false, "Running", "")}
	switch at {
	case expiring:
		conditions[0] = condition(Expiring, true, "ExpiresSoon", "it ends at "+course.Spec.Expires.UTC().Format(time.RFC3339)+"; its members are paused then. To go on: change spec.expires")
	case expired:
		conditions[0] = condition(Expiring, true, "Expired", fmt.Sprintf("its members are paused; they are deleted at %s at the earliest, when rivulet has run for %s with them paused, and NTP or a peer confirms its clock. To go on: change spec.expires",
			course.Spec.Expires.Add(keep).UTC().Format(time.RFC3339), keep))
	}
	if len(course.Spec.Images) > 0 {
		conditions = append(conditions, c.images.condition(course.Spec.Images))
	}
	ready := condition(Ready, true, "Usable", "all members can be used")
	usable := usable(mine)
	switch fault := errors.Join(faults...); {
	case fault != nil:
		ready = condition(Ready, false, "Failed", fmt.Sprintf("%.1000s", fault.Error()))
	case at == expired:
		ready = condition(Ready, false, "Expired", "its members are paused")
	case usable < len(mine) || len(mine) < len(names):
		ready = condition(Ready, false, "Starting", fmt.Sprintf("%d of %d members can be used; see: rivulet course status %s", usable, len(names)+len(unlisted), course.Name))
	}
	return errors.Join(errors.Join(faults...), c.status(ctx, course, mine, Status{Unlisted: unlisted, PausedFor: course.noted(paused)}, append(conditions, ready)...))
}

// apply writes the VirtualCluster of a member, if the Course or the object has changed since the last time.
func (c *controller) apply(ctx context.Context, course *Course, name string, mine map[string]*unstructured.Unstructured, spec map[string]any) error {
	want := course.member(name, spec)
	raw, err := json.Marshal(want)
	if err != nil {
		return err
	}
	client := c.Dynamic.Resource(objects.Resource).Namespace(course.Namespace)
	have := mine[name]
	if have != nil && c.applied[have.GetUID()] == fmt.Sprint(have.GetGeneration(), string(raw)) {
		return nil
	}
	if have == nil {
		if other, err := client.Get(ctx, name, metav1.GetOptions{}); err == nil {
			return fmt.Errorf("VirtualCluster %s is there, and not of this course; delete it, or use another name", other.GetName())
		} else if !apierrors.IsNotFound(err) {
			return err
		}
	}
	made, err := client.Apply(ctx, name, want, metav1.ApplyOptions{FieldManager: fieldManager, Force: true})
	if err != nil {
		return fmt.Errorf("member %s: %w", name, err)
	}
	c.applied[made.GetUID()] = fmt.Sprint(made.GetGeneration(), string(raw))
	mine[name] = made
	return nil
}

// usable counts the virtual clusters that can be used.
func usable(mine map[string]*unstructured.Unstructured) (n int) {
	for _, u := range mine {
		if ready(u) {
			n++
		}
	}
	return n
}

func ready(u *unstructured.Unstructured) bool {
	o := &objects.VirtualCluster{}
	if runtime.DefaultUnstructuredConverter.FromUnstructured(u.Object, o) != nil {
		return false
	}
	return meta.IsStatusConditionTrue(o.Status.Conditions, objects.Ready)
}

// awake reports whether work inside wakes nothing.
func awake(u *unstructured.Unstructured) bool {
	state, _, _ := unstructured.NestedString(u.Object, "status", "state")
	return state == string(vcluster.Awake)
}

// inside applies the manifests of a Course inside a member once, and makes an event there before the end. Only one that is
// awake gets the event: the others get it when they wake.
func (c *controller) inside(ctx context.Context, course *Course, u *unstructured.Unstructured, at phase) {
	notes := u.GetAnnotations()
	manifests := course.Spec.Manifests != "" && notes[appliedAnnotation] == ""
	end := ""
	if at == expiring {
		end = course.Spec.Expires.UTC().Format(time.RFC3339)
	}
	warn := end != "" && notes[warnedAnnotation] != end && awake(u)
	if !ready(u) || u.GetDeletionTimestamp() != nil || !manifests && !warn {
		return
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	id := u.GetUID()
	if c.busy[id] {
		return
	}
	c.busy[id] = true
	c.work.Go(func() {
		ctx, cancel := context.WithTimeout(ctx, insideLimit)
		defer cancel()
		done := map[string]any{}
		err := c.do(ctx, u.GetName(), course, manifests, warn, done)
		if len(done) > 0 {
			patch, e := json.Marshal(map[string]any{"metadata": map[string]any{"annotations": done}})
			if e == nil {
				_, e = c.Dynamic.Resource(objects.Resource).Namespace(u.GetNamespace()).Patch(ctx, u.GetName(), types.MergePatchType, patch, metav1.PatchOptions{FieldManager: fieldManager})
			}
			err = errors.Join(err, e)
		}
		c.mu.Lock()
		delete(c.busy, id)
		if c.failed[id] = err; err == nil {
			delete(c.failed, id)
		}
		c.mu.Unlock()
		if err == nil { // after an error the next check tries again
			c.Poke()
		}
	})
}

func (c *controller) failure(u *unstructured.Unstructured) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	if err := c.failed[u.GetUID()]; err != nil {
		return fmt.Errorf("inside %s: %w", u.GetName(), err)
	}
	return nil
}

// do is the work inside a member; done gets the annotations for what has succeeded.
func (c *controller) do(ctx context.Context, name string, course *Course, manifests, warn bool, done map[string]any) error {
	raw, err := c.Kubeconfig(name)
	if err != nil {
		return err
	}
	api, err := clientcmd.RESTConfigFromKubeConfig(raw)
	if err != nil {
		return err
	}
	api.Proxy = foreign.NoProxy
	if err := foreign.Guard(api, foreign.Origin{Name: "virtual cluster " + name, Cure: "rivulet vcluster list"}); err != nil { // its administrator decides who answers
		return err
	}
	connection, err := rest.HTTPClientFor(api)
	if err != nil {
		return err
	}
	defer utilnet.CloseIdleConnectionsFor(connection.Transport)
	client, err := kubernetes.NewForConfigAndClient(api, connection)
	if err != nil {
		return err
	}
	if manifests {
		dyn, err := dynamic.NewForConfigAndClient(api, connection)
		if err != nil {
			return err
		}
		if err := applyInside(ctx, dyn, client, course.Spec.Manifests); err != nil {
			return fmt.Errorf("spec.manifests: %w", err)
		}
		done[appliedAnnotation] = "applied"
	}
	if warn {
		end := course.Spec.Expires.UTC().Format(time.RFC3339)
		now := metav1.Now()
		_, err := client.CoreV1().Events(metav1.NamespaceDefault).Create(ctx, &corev1.Event{
			ObjectMeta:     metav1.ObjectMeta{GenerateName: "course-"},
			InvolvedObject: corev1.ObjectReference{APIVersion: "v1", Kind: "Namespace", Name: metav1.NamespaceDefault, Namespace: metav1.NamespaceDefault},
			Reason:         "CourseExpires", Type: corev1.EventTypeWarning, Source: corev1.EventSource{Component: "rivulet"}, Count: 1, FirstTimestamp: now, LastTimestamp: now,
			Message: "the course " + course.Name + " ends at " + end + ", and this cluster with it: save what you want to keep",
		}, metav1.CreateOptions{})
		if err != nil {
			return err
		}
		done[warnedAnnotation] = end
	}
	return nil
}

// applyInside applies YAML documents in their order. Objects without a namespace go to default.
func applyInside(ctx context.Context, dyn dynamic.Interface, client kubernetes.Interface, manifests string) error {
	list, err := policy.Decode([]byte(manifests))
	if err != nil {
		return err
	}
	mapper := restmapper.NewDeferredDiscoveryRESTMapper(memory.NewMemCacheClient(client.Discovery()))
	for _, o := range list {
		if len(o.Object) == 0 { // an empty document
			continue
		}
		kind := o.GroupVersionKind()
		mapping, err := mapper.RESTMapping(kind.GroupKind(), kind.Version)
		if err != nil {
			return err
		}
		var to dynamic.ResourceInterface = dyn.Resource(mapping.Resource)
		if mapping.Scope.Name() == meta.RESTScopeNameNamespace {
			namespace := o.GetNamespace()
			if namespace == "" {
				namespace = metav1.NamespaceDefault
			}
			to = dyn.Resource(mapping.Resource).Namespace(namespace)
		}
		if _, err := to.Apply(ctx, o.GetName(), o, metav1.ApplyOptions{FieldManager: fieldManager, Force: true}); err != nil {
			return fmt.Errorf("%s %s: %w", strings.ToLower(kind.Kind), o.GetName(), err)
		}
	}
	return nil
}

func condition(kind string, on bool, reason, message string) metav1.Condition {
	out := metav1.Condition{Type: kind, Status: metav1.ConditionFalse, Reason: reason, Message: message}
	if on {
		out.Status = metav1.ConditionTrue
	}
	return out
}

// status completes and writes the status if it changed, and an event for each condition that is new.
func (c *controller) status(ctx context.Context, course *Course, mine map[string]*unstructured.Unstructured, next Status, conditions ...metav1.Condition) error {
	next.ObservedGeneration, next.Members, next.Usable, next.Conditions = course.Generation, len(mine), usable(mine), slices.Clone(course.Status.Conditions)
	var events []metav1.Condition
	if len(course.Spec.Images) == 0 {
		meta.RemoveStatusCondition(&next.Conditions, ImagesReady)
	}
	for _, want := range conditions {
		want.ObservedGeneration = course.Generation
		had := meta.FindStatusCondition(next.Conditions, want.Type)
		if had == nil || had.Reason != want.Reason {
			events = append(events, want)
		}
		meta.SetStatusCondition(&next.Conditions, want)
	}
	if equality.Semantic.DeepEqual(course.Status, next) {
		return nil
	}
	written := *course
	written.Status = next
	written.TypeMeta = metav1.TypeMeta{APIVersion: Resource.GroupVersion().String(), Kind: Kind}
	m, err := runtime.DefaultUnstructuredConverter.ToUnstructured(&written)
	if err != nil {
		return err
	}
	if _, err := c.Dynamic.Resource(Resource).Namespace(course.Namespace).UpdateStatus(ctx, &unstructured.Unstructured{Object: m}, metav1.UpdateOptions{FieldManager: policy.FieldManager}); err != nil {
		return fmt.Errorf("courses: %s: %w", course.key(), err)
	}
	for _, e := range events {
		kind := corev1.EventTypeNormal
		if bad := e.Type == Expiring; bad == (e.Status == metav1.ConditionTrue) && e.Reason != "Starting" && e.Reason != "BringingImages" {
			kind = corev1.EventTypeWarning
		}
		if e.Message != "" {
			c.Recorder.Event(reference(course), kind, e.Reason, e.Message)
		}
	}
	return nil
}
