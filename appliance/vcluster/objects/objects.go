// Package objects manages virtual clusters by VirtualCluster objects of the home cluster's API, for tools that apply
// manifests. Each object has state, conditions and events, and a Secret with the administrator's kubeconfig.
//
//	API server ── watch ──▶ sync ──▶ Manager: create, change, pause, delete
//	     ▲                   │  ◀── Manager's states
//	     └─ status, events, Secret, finalizer
//
// It watches VirtualClusters and the states of the Manager. It alone writes the objects' status, finalizer and events,
// and their Secrets. Restart: all objects are compared with the Manager's records, which have the owning object. A
// missing object deletes nothing, only a deletion that waits for the finalizer does: a datastore restored from a backup
// ends no virtual cluster. Failure as the user sees it: the condition Ready, and an event.
package objects

import (
	"context"
	_ "embed"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/client-go/rest"
	"k8s.io/utils/ptr"

	"rivulet/appliance/addons/customresource"
	"rivulet/appliance/vcluster"
	"rivulet/fabric/changes"
	"rivulet/offload/policy"
)

//go:embed crd.yaml
var crd []byte

// Clusters manages the virtual clusters; vcluster.Manager is one.
type Clusters interface {
	// Briefs returns all, without measured values.
	Briefs() []vcluster.View
	// StatesChanged reports changes of Briefs.
	StatesChanged() (<-chan struct{}, func())
	CreateFor(spec vcluster.Spec, owner vcluster.Owner) (vcluster.View, error)
	Change(ctx context.Context, name string, to vcluster.Change) (vcluster.View, error)
	Pause(name string) error
	Resume(name string) error
	Delete(ctx context.Context, name string) error
	Kubeconfig(name string) ([]byte, error)
}

// Config is the input of Run. All of it is required.
type Config struct {
	API *rest.Config
	Clusters
	Log *slog.Logger
}

const (
	// gather is how long changes are collected before they are handled together.
	gather = 100 * time.Millisecond
	// renew is the interval of checks for an expiring certificate in a Secret.
	renew = time.Hour
)

// controller is the running component. One goroutine does all but slow work, which has one goroutine for each virtual
// cluster.
type controller struct {
	Config
	customresource.Objects
	written map[string]time.Time // Secrets, by object

	work   sync.WaitGroup
	mu     sync.Mutex
	busy   map[string]bool  // by virtual cluster
	failed map[string]error // last error, by virtual cluster
}

// Run makes virtual clusters match the objects until ctx ends. It calls ready after the first pass over all objects.
func Run(ctx context.Context, cfg Config, ready func()) error {
	changed, stop := cfg.StatesChanged()
	defer stop()
	c := &controller{Config: cfg, written: map[string]time.Time{}, busy: map[string]bool{}, failed: map[string]error{}}
	defer c.work.Wait()
	kind := customresource.Kind{Name: "virtual clusters", Definition: crd, Resource: Resource, Gather: gather}
	return customresource.Run(ctx, cfg.API, kind, func(o customresource.Objects) customresource.Loop {
		c.Objects = o
		return customresource.Loop{Sync: c.sync, Changed: []<-chan struct{}{changed}, Every: renew, Log: cfg.Log}
	}, ready)
}

// sync makes all virtual clusters match the objects. A failing one does not delay the others.
func (c *controller) sync(ctx context.Context) error {
	views := map[string]vcluster.View{}
	for _, v := range c.Briefs() {
		views[v.Name] = v
	}
	objects := c.objects()
	// Of two objects with one name the older one owns it.
	slices.SortFunc(objects, func(a, b *VirtualCluster) int {
		if n := a.CreationTimestamp.Compare(b.CreationTimestamp.Time); n != 0 {
			return n
		}
		if a.key() < b.key() {
			return -1
		}
		return 1
	})
	var errs []error
	for _, o := range objects {
		v, there := views[o.Name]
		var owned *vcluster.View
		if there && v.Owner == o.owner() {
			owned = &v
		}
		err := c.one(ctx, o, owned, there)
		if err == nil && owned == nil && !there {
			views[o.Name] = vcluster.View{Owner: o.owner()} // owns the name from here on
		}
		errs = append(errs, err)
	}
	return errors.Join(errs...)
}

func (c *controller) objects() (out []*VirtualCluster) {
	for _, item := range c.Store.List() {
		u, ok := item.(*unstructured.Unstructured)
		if !ok {
			continue
		}
		o, err := fromAPI(u)
		if err != nil {
			c.Log.Warn("a VirtualCluster is unreadable", "name", u.GetName(), "err", err)
			continue
		}
		out = append(out, o)
	}
	return out
}

// one handles one object; v is its virtual cluster, if it exists, and taken reports whether another one has the name.
func (c *controller) one(ctx context.Context, o *VirtualCluster, v *vcluster.View, taken bool) error {
	if o.DeletionTimestamp != nil {
		return c.end(ctx, o, v)
	}
	want, err := o.want()
	switch {
	case err != nil:
		return c.status(ctx, o, fresh(o, "", "Invalid", err.Error(), "", false))
	case v == nil && taken:
		return c.status(ctx, o, fresh(o, "", "NameTaken", fmt.Sprintf("another virtual cluster has the name %s, see: rivulet vcluster list; use another name", o.Name), "", false))
	}
	if !slices.Contains(o.Finalizers, Finalizer) {
		next := o.meta()
		next.Finalizers = append(next.Finalizers, Finalizer)
		if err := c.write(ctx, next, false); err != nil {
			return err
		}
		return nil // the change triggers the next sync
	}
	if v == nil {
		made, err := c.CreateFor(want, o.owner())
		if err != nil {
			return errors.Join(err, c.status(ctx, o, fresh(o, string(vcluster.Failed), "NotMade", err.Error(), "", false)))
		}
		v = &made
		c.Recorder.Event(reference(o), corev1.EventTypeNormal, "Created", "the virtual cluster is made")
	}
	c.adjust(ctx, o, *v, want)
	switch err := c.secret(ctx, o); {
	case errors.Is(err, errSecretTaken):
		message := fmt.Sprintf("Secret %s is somebody else's; delete it, or use another name", o.secretName())
		// Retried.
		return errors.Join(err, c.status(ctx, o, fresh(o, string(v.State), "SecretTaken", message, "", false)))
	case err != nil:
		return err
	}
	state, message := v.State, v.Reason
	reason, ready := camel(state), state == vcluster.Awake || state == vcluster.Asleep
	if failed := c.failure(o.Name); failed != nil {
		reason, message, ready = "NotAsWanted", failed.Error(), false
	}
	return c.status(ctx, o, fresh(o, string(state), reason, message, v.Address.String(), ready))
}

// other returns what is wanted, nil if it is the present value.
func other(have, want corev1.ResourceList) *corev1.ResourceList {
	if equality.Semantic.DeepEqual(have, want) {
		return nil
	}
	if want == nil {
		want = corev1.ResourceList{}
	}
	return &want
}

// adjust applies differences from the spec, outside the loop.
func (c *controller) adjust(ctx context.Context, o *VirtualCluster, v vcluster.View, want vcluster.Spec) {
	var to vcluster.Change
	if v.Sleep != want.Sleep {
		to.Sleep = &want.Sleep
	}
	if v.WatchKeepsAwake != want.WatchKeepsAwake {
		to.WatchKeepsAwake = &want.WatchKeepsAwake
	}
	if v.Memory != want.Memory {
		to.Memory = &want.Memory
	}
	if v.Datastore != want.Datastore {
		to.Datastore = &want.Datastore
	}
	to.Quota, to.Guarantee = other(v.Quota, want.Quota), other(v.Guarantee, want.Guarantee)
	if v.Ports != want.Ports {
		to.Ports = &want.Ports
	}
	if !equality.Semantic.DeepEqual(v.Targets, want.Targets) {
		to.Targets = &want.Targets
	}
	if !equality.Semantic.DeepEqual(v.Groups, want.Groups) {
		to.Groups = &want.Groups
	}
	pause := v.Paused != o.Spec.Paused
	if to == (vcluster.Change{}) && !pause {
		return
	}
	c.beside(ctx, o.Name, func(ctx context.Context) error {
		if to != (vcluster.Change{}) {
			if _, err := c.Change(ctx, o.Name, to); err != nil {
				return err
			}
		}
		switch {
		case pause && o.Spec.Paused:
			return c.Pause(o.Name)
		case pause:
			return c.Resume(o.Name)
		}
		return nil
	})
}

// end deletes the virtual cluster, then the object.
func (c *controller) end(ctx context.Context, o *VirtualCluster, v *vcluster.View) error {
	if !slices.Contains(o.Finalizers, Finalizer) {
		return nil // another finalizer delays it
	}
	if v != nil {
		c.beside(ctx, o.Name, func(ctx context.Context) error {
			// The datastore answers with what is on its disk: after a power cut the object is deleted, too.
			live, err := c.Dynamic.Resource(Resource).Namespace(o.Namespace).Get(ctx, o.Name, metav1.GetOptions{})
			if err != nil || live.GetUID() != o.UID || live.GetDeletionTimestamp() == nil {
				return err
			}
			return c.Delete(ctx, o.Name)
		})
		reason, message := string(vcluster.Deleting), v.Reason
		if failed := c.failure(o.Name); failed != nil {
			message = failed.Error()
		}
		return c.status(ctx, o, fresh(o, string(vcluster.Deleting), reason, message, "", false))
	}
	next := o.meta()
	next.Finalizers = slices.DeleteFunc(next.Finalizers, func(f string) bool { return f == Finalizer })
	delete(c.written, o.key())
	if err := c.write(ctx, next, false); err != nil && !apierrors.IsNotFound(err) {
		return err
	}
	return nil
}

// beside does slow work, once at a time for each virtual cluster.
func (c *controller) beside(ctx context.Context, name string, do func(context.Context) error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.busy[name] {
		return
	}
	c.busy[name] = true
	c.work.Go(func() {
		err := do(ctx)
		c.mu.Lock()
		delete(c.busy, name)
		was := c.failed[name]
		delete(c.failed, name)
		if err != nil && ctx.Err() == nil {
			c.failed[name] = err
		}
		c.mu.Unlock()
		if err != nil && was != nil && err.Error() == was.Error() && !changes.Wait(ctx, customresource.LastRetry) {
			return // repeated failures are retried after a pause
		}
		c.Poke()
	})
}

func (c *controller) failure(name string) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.failed[name]
}

var errSecretTaken = errors.New("a Secret of that name is somebody else's")

// secret writes the administrator's kubeconfig beside the object.
func (c *controller) secret(ctx context.Context, o *VirtualCluster) error {
	if at, ok := c.written[o.key()]; ok && time.Since(at) < renew/2 {
		return nil
	}
	kubeconfig, err := c.Kubeconfig(o.Name)
	if err != nil {
		return err
	}
	want := &corev1.Secret{
		ObjectMeta: metav1.ObjectMeta{Name: o.secretName(), Namespace: o.Namespace, Labels: map[string]string{"app.kubernetes.io/managed-by": "rivulet"},
			OwnerReferences: []metav1.OwnerReference{{APIVersion: groupVersion.String(), Kind: Kind, Name: o.Name, UID: o.UID, Controller: ptr.To(true)}}},
		Data: map[string][]byte{KubeconfigKey: kubeconfig},
	}
	secrets := c.Kube.CoreV1().Secrets(o.Namespace)
	have, err := secrets.Get(ctx, want.Name, metav1.GetOptions{})
	switch {
	case apierrors.IsNotFound(err):
		_, err = secrets.Create(ctx, want, metav1.CreateOptions{FieldManager: policy.FieldManager})
	case err == nil && !metav1.IsControlledBy(have, o):
		return errSecretTaken
	case err == nil && !equality.Semantic.DeepEqual(have.Data, want.Data):
		have.Data = want.Data
		_, err = secrets.Update(ctx, have, metav1.UpdateOptions{FieldManager: policy.FieldManager})
	}
	if err != nil {
		return fmt.Errorf("virtual clusters: Secret %s/%s: %w", o.Namespace, want.Name, err)
	}
	c.written[o.key()] = time.Now()
	return nil
}

// status writes a status if it changed, and emits an event for each change.
func (c *controller) status(ctx context.Context, o *VirtualCluster, want Status) error {
	if equality.Semantic.DeepEqual(o.Status, want) {
		return nil
	}
	next := o.meta()
	next.Status = want
	if err := c.write(ctx, next, true); err != nil {
		return err
	}
	now := want.Conditions[0]
	if len(o.Status.Conditions) > 0 && o.Status.Conditions[0].Reason == now.Reason && o.Status.Conditions[0].Message == now.Message {
		return nil
	}
	switch {
	case now.Status == metav1.ConditionTrue:
		c.Recorder.Event(reference(o), corev1.EventTypeNormal, now.Reason, "it can be used")
	case now.Message != "":
		c.Recorder.Event(reference(o), corev1.EventTypeWarning, now.Reason, now.Message)
	}
	return nil
}

// write updates an object, or its status only.
func (c *controller) write(ctx context.Context, o *VirtualCluster, status bool) error {
	u, err := toAPI(o)
	if err != nil {
		return err
	}
	var part []string
	if status {
		part = append(part, "status")
	}
	if _, err := c.Dynamic.Resource(Resource).Namespace(o.Namespace).Update(ctx, u, metav1.UpdateOptions{FieldManager: policy.FieldManager}, part...); err != nil {
		return fmt.Errorf("virtual clusters: %s: %w", o.key(), err)
	}
	return nil
}

// meta returns a copy that shares no lists or maps of metadata.
func (o *VirtualCluster) meta() *VirtualCluster {
	out := *o
	out.ObjectMeta = *o.ObjectMeta.DeepCopy()
	return &out
}
