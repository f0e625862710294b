package tenancy

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/tools/cache"
	"k8s.io/utils/ptr"

	"rivulet/fabric/changes"
	"rivulet/fabric/peer"
	"rivulet/offload/offer"
	"rivulet/offload/policy"
	"rivulet/offload/watch"
)

const (
	// settle is the least time between two passes, in which changes are collected. A pass reads every tenant pod, so
	// with thousands of changing pods passes are limited to a tenth of a core; settleMost bounds that pause.
	settle, settleMost = 50 * time.Millisecond, time.Second
	// DefaultGrace is how long a consumer that uses more than its part may take to hand back the rest itself. Then its
	// newest pods are deleted here.
	DefaultGrace = 10 * time.Minute
	// nudgeEvery is the least time between two nudges of one object, and before the first of a Job.
	nudgeEvery = 2 * time.Second
)

var now = time.Now

// poke triggers a pass.
func (t *Tenancy) poke() {
	changes.Poke(t.kick)
}

// keepRations is the last step of the allocation that offer.Divide begins: it applies the parts of consumers to quotas,
// and deletes pods that stay above them, until ctx ends.
func (t *Tenancy) keepRations(ctx context.Context) {
	for _, informer := range []cache.SharedIndexInformer{t.quotas.Informer(), t.sets.Informer(), t.jobs.Informer(), t.namespaces.Informer()} {
		// It fails only on a stopped informer.
		_, _ = informer.AddEventHandler(watch.Changes(t.poke))
	}
	_, _ = t.quotas.Informer().AddEventHandler(watch.Each(func(any) { t.granted.Notify() }))
	t.factory.Start(ctx.Done())
	for _, ok := range t.factory.WaitForCacheSync(ctx.Done()) {
		if !ok {
			return
		}
	}
	changed, stop := t.room.Changed()
	defer stop()
	over := map[peer.ID]time.Time{} // since when a consumer uses more than its part
	nudged := map[types.UID]time.Time{}
	wrote := map[string]lastQuota{}
	for {
		wait, looked := t.rations(ctx, over, nudged, wrote)
		t.granted.Notify() // settled may have changed
		pause := min(max(settle, 9*looked), settleMost)
		// The pause is after a pass, so the first change in a quiet time is handled at once.
		if !changes.Wait(ctx, pause) {
			return
		}
		select {
		case <-ctx.Done():
			return
		case <-changed:
		case <-t.kick:
		case <-time.After(max(wait-pause, 0)):
		}
	}
}

// lastQuota is a quota that this process wrote and that the cache may not have yet.
type lastQuota struct {
	seen string // the version it was made from, "" if there was none
	made *corev1.ResourceQuota
	at   time.Time
}

// cacheLag is how long the cache may take to show a write.
const cacheLag = 5 * time.Second

// rations makes one pass. It returns when the next is due at the latest, and its duration without the writes. wrote are
// the quotas that earlier passes have written, by twin.
func (t *Tenancy) rations(ctx context.Context, over map[peer.ID]time.Time, nudged map[types.UID]time.Time, wrote map[string]lastQuota) (due, looked time.Duration) {
	begun := time.Now()
	const idle, retry = time.Hour, 2 * time.Second
	room, known := t.room.Room(t.Shares())
	if !known || !room.Offer.Ready {
		// While the provider is not ready nothing is taken back, and new twins get nothing.
		if err := t.makeQuotas(ctx, wrote); err != nil && ctx.Err() == nil {
			t.Log.Warn("a consumer's quota is not as it should be yet", "err", err, "retry", retry)
			return retry, 0
		}
		return idle, 0
	}
	consumers := t.consumers()
	parts := map[peer.ID]amounts{}
	due = idle
	excess := map[string]amounts{} // by twin
	tooMuch := func(id peer.ID, pods func() []*corev1.Pod) {
		surplus := room.Surplus(id, consumers, pods)
		if len(surplus) == 0 {
			delete(over, id)
			return
		}
		if _, since := over[id]; !since {
			over[id] = now()
			t.Log.Info("a consumer uses more than its part; it is given time to hand back", "peer", id.Short(), "pods", len(surplus), "grace", t.Grace)
		}
		for _, p := range surplus {
			if excess[p.Namespace] == nil {
				excess[p.Namespace] = amounts{}
			}
			for name, q := range offer.Requests(p) {
				excess[p.Namespace][name] += offer.Amount(name, q)
			}
		}
		if left := t.Grace - now().Sub(over[id]); left > 0 {
			due = min(due, left)
			return
		}
		due = retry
		t.takeBack(ctx, id, surplus)
	}
	members := map[peer.ID]member{}
	for id, part := range room.Parts(consumers) {
		parts[id] = amountsOf(part)
		if id != offer.Pool {
			tooMuch(id, func() []*corev1.Pod {
				all := t.room.PodsOf(id)
				for _, other := range consumers {
					if other != id && room.Account(other) == id {
						all = append(all, t.room.PodsOf(other)...)
					}
				}
				return all
			})
			continue
		}
		members = t.members(room, parts[id])
		tooMuch(id, func() (all []*corev1.Pod) {
			for id := range members {
				all = append(all, t.room.PodsOf(id)...)
			}
			return all
		})
		for id := range members {
			if over[offer.Pool].IsZero() { // otherwise its pods are already among them
				tooMuch(id, func() []*corev1.Pod { return t.room.PodsOf(id) })
			}
		}
	}
	for id := range over {
		if _, member := members[id]; !member && parts[id] == nil {
			delete(over, id)
		}
	}

	lent := room.Lent()
	twins, quotas := t.accounts(room, excess, wrote)
	if t.nudge(ctx, twins, nudged) {
		due = min(due, nudgeEvery)
	}
	byConsumer := map[peer.ID][]*corev1.ResourceQuota{}
	// Objects of a peer and of its virtual clusters are counted together.
	counted := func(name string) peer.ID { return t.account(twins[name].consumer) }
	for name, q := range quotas {
		byConsumer[counted(name)] = append(byConsumer[counted(name)], q)
	}
	var errs []error
	calm, shares := true, ration(amountsOf(lent), parts, twins, members)
	looked = time.Since(begun)
	for name, next := range shares {
		if err := t.bindMemory(ctx, name, room, parts); err != nil {
			errs = append(errs, err)
			continue
		}
		q := quotas[name]
		if pods := corev1.ResourcePods; t.stored.over(t.account(twins[name].consumer)) || t.routes.over(t.account(twins[name].consumer)) {
			next[pods] = min(next[pods], twins[name].used[pods]) // controllers make no more of them
		}
		hard := merged(counts(q, byConsumer[counted(name)], t.bounds(twins[name].consumer)), next)
		if q.ResourceVersion != "" && equality.Semantic.DeepEqual(hard, q.Spec.Hard) {
			calm = calm && equality.Semantic.DeepEqual(hard, q.Status.Hard)
			continue
		}
		calm = false
		fixed := q.DeepCopy()
		fixed.Spec.Hard = hard
		if err := t.writeQuota(ctx, fixed, wrote); err != nil {
			errs = append(errs, err)
		}
	}
	if !calm {
		twins = nil
	}
	t.settle(twins)
	if err := errors.Join(errs...); err != nil && ctx.Err() == nil {
		t.Log.Warn("a consumer's quota is not as it should be yet", "err", err, "retry", retry)
		return retry, looked
	}
	return due, looked
}

// members bounds the virtual clusters with a twin here. Without a guarantee of the owner the reserve is small: a
// quarter of the pool for all of them together, and a pod each if there are enough.
func (t *Tenancy) members(room offer.Room, pool amounts) map[peer.ID]member {
	out := map[peer.ID]member{}
	for _, id := range t.consumers() {
		if m, hosted := room.Members[id]; hosted {
			one := member{most: amountsOf(m.Most), least: amountsOf(m.Least), groups: map[string]amounts{}}
			for _, g := range m.Groups {
				one.groups[g.Name] = amountsOf(g.Cap)
			}
			out[id] = one
		}
	}
	n := int64(len(out))
	for _, m := range out {
		for name, part := range pool {
			floor := part / (4 * n)
			if name == corev1.ResourcePods && part >= n {
				floor = max(floor, 1)
			}
			for _, most := range m.groups {
				if _, limited := most[name]; limited { // first come, first served, up to the last pod that fits
					floor = 0
				}
			}
			m.least[name] = max(m.least[name], floor)
		}
	}
	return out
}

// writeQuota creates the quota, or updates the version that was read; a conflict causes another pass.
func (t *Tenancy) writeQuota(ctx context.Context, q *corev1.ResourceQuota, wrote map[string]lastQuota) error {
	var made *corev1.ResourceQuota
	var err error
	if quotas := t.client.CoreV1().ResourceQuotas(q.Namespace); q.ResourceVersion == "" {
		made, err = quotas.Create(ctx, q, metav1.CreateOptions{FieldManager: policy.FieldManager})
	} else {
		made, err = quotas.Update(ctx, q, metav1.UpdateOptions{FieldManager: policy.FieldManager})
	}
	switch {
	case err == nil:
		wrote[q.Namespace] = lastQuota{q.ResourceVersion, made, time.Now()}
	case !apierrors.IsNotFound(err) && !apierrors.IsConflict(err) && !apierrors.IsAlreadyExists(err) && !apierrors.HasStatusCause(err, corev1.NamespaceTerminatingCause):
		return fmt.Errorf("tenancy: quota of twin %s: %w", q.Namespace, err)
	}
	return nil
}

// makeQuotas creates missing quotas of twins.
func (t *Tenancy) makeQuotas(ctx context.Context, wrote map[string]lastQuota) error {
	var errs []error
	for _, q := range t.quotasOf(wrote) {
		if q.ResourceVersion == "" {
			errs = append(errs, t.writeQuota(ctx, q, wrote))
		}
	}
	return errors.Join(errs...)
}

// quotasOf returns the quota of each twin that is not being deleted: the one that was written last, or, without a
// version, one to be created.
func (t *Tenancy) quotasOf(wrote map[string]lastQuota) map[string]*corev1.ResourceQuota {
	out := map[string]*corev1.ResourceQuota{}
	twins, _ := t.twins.List(labels.Everything()) // a cache cannot fail
	for _, ns := range twins {
		if ns.DeletionTimestamp != nil || ns.Status.Phase == corev1.NamespaceTerminating {
			continue
		}
		q, err := t.quotas.Lister().ResourceQuotas(ns.Name).Get(quotaName)
		if err != nil {
			consumer := peer.ID(ns.Labels[policy.OriginLabel])
			q = newQuota(ns.Name, consumer, t.bounds(consumer))
		}
		if w, known := wrote[ns.Name]; known && w.seen == q.ResourceVersion && time.Since(w.at) < cacheLag {
			q = w.made
		}
		out[ns.Name] = q
	}
	for name, w := range wrote {
		if q, known := out[name]; !known || q != w.made {
			delete(wrote, name)
		}
	}
	return out
}

// accounts reads the input of ration, without twins that are being deleted. A quota that is not in force yet counts as
// requested: there are no rights in its twin so far.
func (t *Tenancy) accounts(room offer.Room, excess map[string]amounts, wrote map[string]lastQuota) (map[string]account, map[string]*corev1.ResourceQuota) {
	twins, quotas, lent := map[string]account{}, t.quotasOf(wrote), room.Lent()
	for name, q := range quotas {
		ns, err := t.twins.Get(name)
		if err != nil {
			delete(quotas, name) // just deleted
			continue
		}
		consumer := peer.ID(ns.Labels[policy.OriginLabel])
		twins[name] = account{
			consumer: consumer, pool: room.Account(consumer),
			spec: fromQuota(q.Spec.Hard, lent), hard: fromQuota(q.Status.Hard, lent), used: fromQuota(q.Status.Used, lent),
			waits: amounts{}, step: amounts{}, excess: excess[name],
		}
	}
	sets, _ := t.sets.Lister().List(labels.Everything())
	for _, s := range sets {
		waits(twins, s.Namespace, missing(s), &s.Spec.Template.Spec)
	}
	jobs, _ := t.jobs.Lister().List(labels.Everything())
	for _, j := range jobs {
		waits(twins, j.Namespace, unmade(j), &j.Spec.Template.Spec)
	}
	return twins, quotas
}

func waits(twins map[string]account, twin string, pods int64, spec *corev1.PodSpec) {
	a, known := twins[twin]
	if !known || pods <= 0 {
		return
	}
	for name, q := range offer.Requests(&corev1.Pod{Spec: *spec}) {
		one := offer.Amount(name, q)
		a.waits[name] += one * min(pods, 1<<20)
		if least, known := a.step[name]; one > 0 && (!known || one < least) {
			a.step[name] = one
		}
	}
}

// missing is how many pods of the set the API server has refused.
func missing(s *appsv1.ReplicaSet) int64 {
	if s.DeletionTimestamp != nil || !slices.ContainsFunc(s.Status.Conditions, func(c appsv1.ReplicaSetCondition) bool {
		return c.Type == appsv1.ReplicaSetReplicaFailure && c.Status == corev1.ConditionTrue
	}) {
		return 0
	}
	want := int64(1)
	if s.Spec.Replicas != nil {
		want = int64(*s.Spec.Replicas)
	}
	return want - int64(s.Status.Replicas)
}

// unmade is how many pods the job lacks. A Job does not have the reason.
func unmade(j *batchv1.Job) int64 {
	if j.DeletionTimestamp != nil || j.Spec.Suspend != nil && *j.Spec.Suspend || j.Status.Active+j.Status.Succeeded+j.Status.Failed > 0 ||
		slices.ContainsFunc(j.Status.Conditions, func(c batchv1.JobCondition) bool {
			return (c.Type == batchv1.JobComplete || c.Type == batchv1.JobFailed) && c.Status == corev1.ConditionTrue
		}) {
		return 0
	}
	if j.Spec.Parallelism != nil {
		return int64(*j.Spec.Parallelism)
	}
	return 1
}

// nudge makes controllers retry whose pods the API server has refused and would admit now. By themselves they wait
// longer after each refusal, up to 15 minutes; any change of the object makes them retry at once.
func (t *Tenancy) nudge(ctx context.Context, twins map[string]account, nudged map[types.UID]time.Time) (again bool) {
	patch := []byte(fmt.Sprintf(`{"metadata":{"annotations":{%q:%q}}}`, triedAnnotation, now().UTC().Format(time.RFC3339)))
	seen := map[types.UID]bool{}
	try := func(o metav1.Object, pods int64, spec *corev1.PodSpec, send func() error) {
		a, known := twins[o.GetNamespace()]
		if pods <= 0 || !known {
			return
		}
		seen[o.GetUID()] = true
		for name, q := range offer.Requests(&corev1.Pod{Spec: *spec}) {
			if hard, bounded := a.hard[name]; bounded && a.used[name]+offer.Amount(name, q) > hard {
				return
			}
		}
		again = true
		if last, known := nudged[o.GetUID()]; known && now().Sub(last) < nudgeEvery {
			return
		}
		nudged[o.GetUID()] = now()
		if err := send(); err != nil && !apierrors.IsNotFound(err) {
			t.Log.Debug("a controller was not told that there is room", "object", o.GetNamespace()+"/"+o.GetName(), "err", err)
		}
	}
	sets, _ := t.sets.Lister().List(labels.Everything())
	for _, s := range sets {
		try(s, missing(s), &s.Spec.Template.Spec, func() error {
			_, err := t.client.AppsV1().ReplicaSets(s.Namespace).Patch(ctx, s.Name, types.MergePatchType, patch, metav1.PatchOptions{FieldManager: policy.FieldManager})
			return err
		})
	}
	jobs, _ := t.jobs.Lister().List(labels.Everything())
	for _, j := range jobs {
		if _, known := nudged[j.UID]; !known {
			nudged[j.UID] = now() // a new Job is in its first attempt
		}
		try(j, unmade(j), &j.Spec.Template.Spec, func() error {
			_, err := t.client.BatchV1().Jobs(j.Namespace).Patch(ctx, j.Name, types.MergePatchType, patch, metav1.PatchOptions{FieldManager: policy.FieldManager})
			return err
		})
	}
	for uid := range nudged {
		if !seen[uid] {
			delete(nudged, uid)
		}
	}
	return again
}

// triedAnnotation on a wrapper is when its controller was last made to retry.
const triedAnnotation = "rivulet.dev/tried-at"

// takeBack deletes pods that were to be handed back. Their quota is lowered already, so that they are not replaced.
func (t *Tenancy) takeBack(ctx context.Context, consumer peer.ID, pods []*corev1.Pod) {
	for _, p := range pods {
		if p.DeletionTimestamp != nil {
			continue
		}
		err := t.client.CoreV1().Pods(p.Namespace).Delete(ctx, p.Name, metav1.DeleteOptions{
			GracePeriodSeconds: ptr.To[int64](graceLast), Preconditions: &metav1.Preconditions{UID: &p.UID}})
		if err != nil && !apierrors.IsNotFound(err) && !apierrors.IsConflict(err) {
			t.Log.Warn("a pod was not taken back yet", "peer", consumer.Short(), "pod", p.Namespace+"/"+p.Name, "err", err)
			continue
		}
		t.Log.Info("pod taken back: its cluster uses more than its part and has not handed it back", "peer", consumer.Short(), "pod", p.Namespace+"/"+p.Name)
	}
}

// consumers are those that have a twin here.
func (t *Tenancy) consumers() []peer.ID {
	var out []peer.ID
	twins, _ := t.twins.List(labels.Everything())
	for _, ns := range twins {
		if id := peer.ID(ns.Labels[policy.OriginLabel]); ns.Status.Phase != corev1.NamespaceTerminating && !slices.Contains(out, id) {
			out = append(out, id)
		}
	}
	return out
}

// Twins returns the consumer of each twin, including those being deleted, whose pods may still run. Call WaitTwins
// before.
func (t *Tenancy) Twins() map[string]peer.ID {
	out := map[string]peer.ID{}
	twins, _ := t.twins.List(labels.Everything())
	for _, ns := range twins {
		out[ns.Name] = peer.ID(ns.Labels[policy.OriginLabel])
	}
	return out
}

// KnownTwins is Twins, and false before these are loaded.
func (t *Tenancy) KnownTwins() (map[string]peer.ID, bool) {
	if !t.namespaces.Informer().HasSynced() {
		return nil, false
	}
	return t.Twins(), true
}

// WaitTwins returns when Twins are loaded, and false if ctx ended before.
func (t *Tenancy) WaitTwins(ctx context.Context) bool {
	return cache.WaitForCacheSync(ctx.Done(), t.namespaces.Informer().HasSynced)
}

// TwinsChanged returns a channel that gets a value after Twins have changed, and the function that ends the
// subscription.
func (t *Tenancy) TwinsChanged() (<-chan struct{}, func()) {
	c := make(chan struct{}, 1)
	handle, err := t.namespaces.Informer().AddEventHandler(watch.Changes(func() { changes.Poke(c) }))
	if err != nil { // the informer has stopped, with everything else
		return c, func() {}
	}
	return c, func() { _ = t.namespaces.Informer().RemoveEventHandler(handle) }
}

// Room is what t lends, with the pods that use it.
func Room(t *Tenancy) *offer.Watcher { return t.room }

// twinsOf lists the consumer's twins in the cache.
func (t *Tenancy) twinsOf(consumer peer.ID) []*corev1.Namespace {
	twins, _ := t.twins.List(labels.SelectorFromSet(labels.Set{policy.OriginLabel: string(consumer)}))
	return twins
}

// slim keeps the parts of wrappers that are used here.
func slim(o any) (any, error) {
	if m, err := meta.Accessor(o); err == nil {
		m.SetManagedFields(nil)
		m.SetAnnotations(keepOnly(m.GetAnnotations(), policy.HomeNamespaceAnnotation, memoryAnnotation, stoppedAnnotation, emptiedAnnotation))
	}
	trim := func(s *corev1.PodSpec) {
		s.Volumes, s.Affinity, s.Tolerations = nil, nil, nil
		for _, list := range [][]corev1.Container{s.InitContainers, s.Containers} {
			for i, c := range list {
				list[i] = corev1.Container{Name: c.Name, Resources: c.Resources, RestartPolicy: c.RestartPolicy}
			}
		}
	}
	switch o := o.(type) {
	case *appsv1.ReplicaSet:
		o.Spec.Template.ObjectMeta = metav1.ObjectMeta{}
		trim(&o.Spec.Template.Spec)
	case *batchv1.Job:
		o.Spec.Template.ObjectMeta = metav1.ObjectMeta{}
		trim(&o.Spec.Template.Spec)
	}
	return o, nil
}

func keepOnly(in map[string]string, keys ...string) map[string]string {
	var out map[string]string
	for _, key := range keys {
		if v, ok := in[key]; ok {
			if out == nil {
				out = map[string]string{}
			}
			out[key] = v
		}
	}
	return out
}
