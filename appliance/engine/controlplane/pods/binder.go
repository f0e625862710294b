package pods

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/kubernetes/scheme"
	typedcorev1 "k8s.io/client-go/kubernetes/typed/core/v1"
	corelisters "k8s.io/client-go/listers/core/v1"
	"k8s.io/client-go/tools/cache"
	"k8s.io/client-go/tools/record"
	schedulinghelpers "k8s.io/component-helpers/scheduling/corev1"
	"k8s.io/component-helpers/scheduling/corev1/nodeaffinity"
	storageutil "k8s.io/component-helpers/storage/volume"
	"k8s.io/klog/v2"
	"k8s.io/utils/ptr"

	"rivulet/fabric/changes"
	"rivulet/fabric/panics"
	"rivulet/offload/consumer/fit"
	"rivulet/offload/consumer/volume"
	"rivulet/offload/offer"
	"rivulet/offload/policy"
	"rivulet/offload/target"
)

// The binder assigns each pod a virtual node with room, first come, first served. The host's scheduler chooses the
// machine, so the binder only chooses a platform or target. What a pod requires of nodes and of other pods is obeyed as
// the scheduler does; preferences are not.

const (
	// again is the pause before a retry.
	again = time.Second
	// noNodeYet is how long after the start pods receive no message that there is no node.
	noNodeYet = 10 * time.Second
)

// binder is the state of bind.
type binder struct {
	client kubernetes.Interface
	pods   corelisters.PodLister
	nodes  corelisters.NodeLister
	fit    corelisters.ConfigMapLister // of fit.Name alone
	rules  Neighbours
	events record.EventRecorder
	began  time.Time
	// bound are pods bound here whose watch lags, by UID: their node.
	bound map[types.UID]string
	// leaving are preempted pods whose watch lags, by UID.
	leaving map[types.UID]bool
}

// bind binds pods until ctx ends.
func bind(ctx context.Context, client kubernetes.Interface, rules Neighbours) error {
	events := record.NewBroadcaster(record.WithContext(ctx))
	defer events.Shutdown()
	events.StartRecordingToSink(&typedcorev1.EventSinkImpl{Interface: client.CoreV1().Events("")})
	factory := informers.NewSharedInformerFactoryWithOptions(client, 0, informers.WithTransform(func(o any) (any, error) {
		if m, ok := o.(metav1.Object); ok {
			m.SetManagedFields(nil)
		}
		return o, nil
	}))
	core := factory.Core().V1()
	known := informers.NewSharedInformerFactoryWithOptions(client, 0, informers.WithNamespace(fit.Namespace), informers.WithTweakListOptions(func(o *metav1.ListOptions) {
		o.FieldSelector = fields.OneTermEqualSelector(metav1.ObjectNameField, fit.Name).String()
	}))
	learnt := known.Core().V1().ConfigMaps()
	b := &binder{client: client, pods: core.Pods().Lister(), nodes: core.Nodes().Lister(), fit: learnt.Lister(), rules: rules, began: time.Now(), bound: map[types.UID]string{}, leaving: map[types.UID]bool{},
		events: events.NewRecorder(scheme.Scheme, corev1.EventSource{Component: "rivulet"})}
	kick := make(chan struct{}, 1)
	poke := func() {
		changes.Poke(kick)
	}
	for _, i := range []cache.SharedIndexInformer{core.Pods().Informer(), core.Nodes().Informer(), learnt.Informer()} {
		if _, err := i.AddEventHandler(cache.ResourceEventHandlerFuncs{AddFunc: func(any) { poke() }, UpdateFunc: func(any, any) { poke() }, DeleteFunc: func(any) { poke() }}); err != nil {
			return err
		}
	}
	for _, f := range []informers.SharedInformerFactory{factory, known} {
		f.Start(ctx.Done())
		defer f.Shutdown()
	}
	if !cache.WaitForCacheSync(ctx.Done(), core.Pods().Informer().HasSynced, core.Nodes().Informer().HasSynced, learnt.Informer().HasSynced) {
		return ctx.Err()
	}
	for {
		var later <-chan time.Time
		if !b.pass(ctx) {
			later = time.After(again)
		}
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-kick:
		case <-later:
		}
	}
}

// pass handles all waiting pods, the highest priority and then the oldest first. It returns false if it has to be
// repeated without a change.
func (b *binder) pass(ctx context.Context) (done bool) {
	pods, _ := b.pods.List(labels.Everything())   // caches cannot fail
	nodes, _ := b.nodes.List(labels.Everything()) // sorted: the host first, and its own platform has the shortest name
	slices.SortFunc(nodes, func(x, y *corev1.Node) int {
		return cmp.Or(cmp.Compare(further(x), further(y)), cmp.Compare(x.Name, y.Name))
	})
	free := map[string]corev1.ResourceList{}
	for _, n := range nodes {
		free[n.Name] = n.Status.Allocatable.DeepCopy()
	}
	known, on := map[types.UID]bool{}, map[string][]*corev1.Pod{}
	beside := beside{rules: b.rules, client: b.client, nodes: nodes, on: on}
	var waiting []*corev1.Pod
	for _, p := range pods {
		known[p.UID] = true
		node := p.Spec.NodeName
		if node != "" {
			delete(b.bound, p.UID)
		} else {
			node = b.bound[p.UID]
		}
		switch {
		case p.Status.Phase == corev1.PodSucceeded || p.Status.Phase == corev1.PodFailed:
		case node != "":
			if left, there := free[node]; there { // a user may name any node, and one may be deleted
				take(left, p)
				beside.add(p, node)
			}
		case p.DeletionTimestamp == nil && len(p.Spec.SchedulingGates) == 0 && p.Spec.SchedulerName == corev1.DefaultSchedulerName:
			waiting = append(waiting, p)
		}
	}
	for uid := range b.bound {
		if !known[uid] {
			delete(b.bound, uid)
		}
	}
	maps.DeleteFunc(b.leaving, func(uid types.UID, _ bool) bool { return !known[uid] })
	slices.SortFunc(waiting, func(x, y *corev1.Pod) int {
		return cmp.Or(cmp.Compare(ptr.Deref(y.Spec.Priority, 0), ptr.Deref(x.Spec.Priority, 0)), x.CreationTimestamp.Compare(y.CreationTimestamp.Time),
			cmp.Compare(x.Namespace, y.Namespace), cmp.Compare(x.Name, y.Name))
	})
	done = true
	for _, p := range waiting {
		shut := b.shut(p, nodes)
		if err := beside.refuse(ctx, p, shut); err != nil {
			b.unplaced(ctx, p, "", err.Error())
			done = false
			continue
		}
		node, why := place(p, nodes, free, shut)
		if node == "" {
			if len(nodes) == 0 && time.Since(b.began) < noNodeYet {
				done = false
				continue
			}
			at, err := b.makeRoom(ctx, p, nodes, free, on, shut)
			if at != "" {
				why += "; pods of lower priority leave " + at + " for it"
				take(free[at], p) // space that becomes free is reserved for it
			}
			done = b.unplaced(ctx, p, at, why) && err == nil && done
			continue
		}
		switch err := b.give(ctx, p, node); {
		case err == nil:
			b.bound[p.UID] = node
			take(free[node], p)
			beside.add(p, node)
		case apierrors.IsNotFound(err), apierrors.IsConflict(err): // changed meanwhile; the watch reports it
		default:
			b.unplaced(ctx, p, "", err.Error())
			done = false
		}
	}
	return done
}

// take subtracts a pod's requests.
func take(free corev1.ResourceList, p *corev1.Pod) {
	for name, q := range offer.Requests(p) {
		if have, bounded := free[name]; bounded {
			have.Sub(q)
			free[name] = have
		}
	}
}

// place chooses a node for a pod, or returns why there is none. shut are the nodes that do not take it, whatever their
// room. It has no side effects.
func place(p *corev1.Pod, nodes []*corev1.Node, free map[string]corev1.ResourceList, shut map[string]string) (node, why string) {
	if policy.System(p.Namespace) {
		return "", fmt.Sprintf("pods of namespace %s do not run in a virtual cluster; use another namespace", p.Namespace)
	}
	if len(nodes) == 0 {
		return "", "this virtual cluster has no node: its host lends it nothing yet; its owner sees why with: rivulet status"
	}
	var reasons []string
	for _, n := range nodes {
		reason := cmp.Or(shut[n.Name], short(p, free[n.Name]))
		if reason == "" {
			return n.Name, ""
		}
		reasons = append(reasons, n.Name+": "+reason)
	}
	return "", "no node takes the pod: " + strings.Join(reasons, "; ")
}

// shut returns, for each node that does not take the pod whatever its room, why.
func (b *binder) shut(p *corev1.Pod, nodes []*corev1.Node) map[string]string {
	out := map[string]string{}
	images, targets := fit.KeptOff(b.learnt(), p)
	for _, n := range nodes {
		why := closed(p, n)
		if image := images[n.Labels[corev1.LabelArchStable]]; why == "" && image != "" {
			why = fmt.Sprintf("image %s did not run on %s; it is tried again after an hour", image, n.Labels[corev1.LabelArchStable])
		}
		if why == "" && slices.Contains(targets, n.Labels[policy.TargetLabel]) {
			why = "it refused such a pod; it is tried again after an hour"
		}
		if why != "" {
			out[n.Name] = why
		}
	}
	return out
}

// beside evaluates rules between pods in one pass. What it needs for that is read when the first pod has such rules.
type beside struct {
	rules      Neighbours
	client     kubernetes.Interface
	nodes      []*corev1.Node
	on         map[string][]*corev1.Pod // by node
	apart      bool                     // one of them requires anti-affinity
	namespaces *corev1.NamespaceList
	evaluator  Evaluator // of all on nodes
}

// add adds a pod on a node.
func (s *beside) add(p *corev1.Pod, node string) {
	s.on[node] = append(s.on[node], p)
	s.apart = s.apart || antiAffinity(p)
	s.evaluator = nil
}

// refuse adds to shut the nodes on which the pod may not run beside those that are on each.
func (s *beside) refuse(ctx context.Context, p *corev1.Pod, shut map[string]string) error {
	if !s.apart && !requires(p) { // most pods
		return nil
	}
	return panics.Call(func() error { // users write what the plug-ins of the scheduler read
		if err := s.read(ctx); err != nil {
			return err
		}
		refused, err := s.evaluator.Refuse(ctx, p)
		for node, why := range refused {
			shut[node] = cmp.Or(shut[node], why)
		}
		return err
	})
}

// read makes the evaluator, unless no pod was added since.
func (s *beside) read(ctx context.Context) (err error) {
	if s.evaluator != nil {
		return nil
	}
	if s.namespaces == nil {
		if s.namespaces, err = s.client.CoreV1().Namespaces().List(ctx, metav1.ListOptions{}); err != nil {
			s.namespaces = nil
			return fmt.Errorf("the namespaces for rules between pods: %w", err)
		}
	}
	var others []*corev1.Pod
	for node, pods := range s.on {
		for _, q := range pods {
			if q.Spec.NodeName == "" { // its watch lags
				copied := *q
				copied.Spec.NodeName = node
				q = &copied
			}
			others = append(others, q)
		}
	}
	s.evaluator, err = s.rules.Beside(ctx, s.namespaces.Items, others, s.nodes)
	return err
}

// requires reports whether a pod has rules about others that are no preferences.
func requires(p *corev1.Pod) bool {
	a := p.Spec.Affinity
	return antiAffinity(p) || a != nil && a.PodAffinity != nil && len(a.PodAffinity.RequiredDuringSchedulingIgnoredDuringExecution) > 0 ||
		slices.ContainsFunc(p.Spec.TopologySpreadConstraints, func(c corev1.TopologySpreadConstraint) bool { return c.WhenUnsatisfiable == corev1.DoNotSchedule })
}

// antiAffinity reports whether a pod requires anti-affinity.
func antiAffinity(p *corev1.Pod) bool {
	a := p.Spec.Affinity
	return a != nil && a.PodAntiAffinity != nil && len(a.PodAntiAffinity.RequiredDuringSchedulingIgnoredDuringExecution) > 0
}

// learnt is the data of fit.Name.
func (b *binder) learnt() map[string]string {
	c, err := b.fit.ConfigMaps(fit.Namespace).Get(fit.Name)
	if err != nil { // nothing is learnt yet
		return nil
	}
	return c.Data
}

// further is 1 for a node that is not the host's.
func further(n *corev1.Node) int {
	if n.Labels[policy.KindLabel] == string(target.Peer) {
		return 1
	}
	return 0
}

// closed returns why the node does not take the pod, independent of its room; "" is no reason.
func closed(p *corev1.Pod, n *corev1.Node) string {
	if n.Spec.Unschedulable {
		return "it is cordoned"
	}
	if further(n) > 0 && policy.KeptHome(p) {
		return "label " + policy.NamespaceLabel + "=off keeps the pod on the host"
	}
	for _, c := range n.Status.Conditions {
		if c.Type == corev1.NodeReady && c.Status != corev1.ConditionTrue {
			return "it is not ready: " + words(c.Message)
		}
	}
	if further(n) > 0 && slices.ContainsFunc(p.Spec.Volumes, func(v corev1.Volume) bool { return v.PersistentVolumeClaim != nil || v.Ephemeral != nil }) {
		return "data of claims stay on the host"
	}
	if fits, err := nodeaffinity.GetRequiredNodeAffinity(p).Match(n); err != nil || !fits {
		return "it does not match the pod's node selector or affinity"
	}
	taint, untolerated := schedulinghelpers.FindMatchingUntoleratedTaint(klog.Background(), n.Spec.Taints, p.Spec.Tolerations, func(t *corev1.Taint) bool {
		return t.Effect != corev1.TaintEffectPreferNoSchedule && t.Key != policy.VirtualTaint
	}, false)
	if untolerated {
		return "the pod does not tolerate its taint " + taint.Key
	}
	return ""
}

// short returns the resource that is too small for the pod; "" is none.
func short(p *corev1.Pod, free corev1.ResourceList) string {
	asked := offer.Requests(p)
	for _, name := range slices.Sorted(maps.Keys(asked)) {
		q := asked[name]
		if have, bounded := free[name]; q.Sign() > 0 && (!bounded || have.Cmp(q) < 0) {
			return fmt.Sprintf("too little %s: the pod asks for %s, %s is left of what the host lends", name, q.String(), have.String())
		}
	}
	return ""
}

// give binds a pod, after its claims have the node too.
func (b *binder) give(ctx context.Context, p *corev1.Pod, node string) error {
	for i := range p.Spec.Volumes {
		if err := b.choose(ctx, p, &p.Spec.Volumes[i], node); err != nil {
			return err
		}
	}
	return b.client.CoreV1().Pods(p.Namespace).Bind(ctx, &corev1.Binding{
		ObjectMeta: metav1.ObjectMeta{Namespace: p.Namespace, Name: p.Name, UID: p.UID}, Target: corev1.ObjectReference{Kind: "Node", Name: node},
	}, metav1.CreateOptions{})
}

// choose sets the node on which the claim of a volume is provisioned.
func (b *binder) choose(ctx context.Context, p *corev1.Pod, v *corev1.Volume, node string) error {
	name := ""
	switch {
	case v.PersistentVolumeClaim != nil:
		name = v.PersistentVolumeClaim.ClaimName
	case v.Ephemeral != nil:
		name = p.Name + "-" + v.Name
	default:
		return nil
	}
	claims := b.client.CoreV1().PersistentVolumeClaims(p.Namespace)
	claim, err := claims.Get(ctx, name, metav1.GetOptions{})
	if apierrors.IsNotFound(err) {
		return fmt.Errorf("claim %s is not there; make it", name)
	}
	if err != nil {
		return err
	}
	if claim.DeletionTimestamp != nil { // its data go with it once no pod uses it
		return errors.New(volume.BeingDeleted(name))
	}
	if err := b.own(ctx, claim); err != nil {
		return err
	}
	class := ptr.Deref(claim.Spec.StorageClassName, "")
	if claim.Spec.VolumeName != "" || class == "" || claim.Annotations[storageutil.AnnSelectedNode] != "" {
		return nil
	}
	how, err := b.client.StorageV1().StorageClasses().Get(ctx, class, metav1.GetOptions{})
	if apierrors.IsNotFound(err) {
		return fmt.Errorf("claim %s wants StorageClass %s, which is not there; see: kubectl get storageclass", name, class)
	}
	if err != nil || ptr.Deref(how.VolumeBindingMode, "") != storagev1.VolumeBindingWaitForFirstConsumer {
		return err
	}
	claim = claim.DeepCopy()
	metav1.SetMetaDataAnnotation(&claim.ObjectMeta, storageutil.AnnSelectedNode, node)
	_, err = claims.Update(ctx, claim, metav1.UpdateOptions{FieldManager: policy.FieldManager})
	return err
}

// own returns an error for a claim on a volume that only nodes of its own could mount.
func (b *binder) own(ctx context.Context, claim *corev1.PersistentVolumeClaim) error {
	if claim.Spec.VolumeName == "" {
		return nil
	}
	v, err := b.client.CoreV1().PersistentVolumes().Get(ctx, claim.Spec.VolumeName, metav1.GetOptions{})
	if apierrors.IsNotFound(err) {
		return fmt.Errorf("claim %s is lost: its volume %s is no more; make the claim again", claim.Name, claim.Spec.VolumeName)
	}
	if err != nil {
		return err
	}
	if kind := volume.ForeignKind(v); kind != "" {
		return fmt.Errorf("claim %s is on volume %s (%s), and a virtual cluster has no machines that could mount it; make the claim again with storageClassName: %s and without volumeName and selector", claim.Name, v.Name, kind, Class)
	}
	return nil
}

// unplaced reports to a pod why it waits, once. It returns false if that has to be retried.
func (b *binder) unplaced(ctx context.Context, p *corev1.Pod, nominated, why string) bool {
	scheduled := corev1.PodCondition{Type: corev1.PodScheduled, Status: corev1.ConditionFalse, Reason: corev1.PodReasonUnschedulable, Message: why, LastTransitionTime: metav1.Now()}
	p = p.DeepCopy()
	p.Status.NominatedNodeName = nominated
	at := slices.IndexFunc(p.Status.Conditions, func(c corev1.PodCondition) bool { return c.Type == corev1.PodScheduled })
	switch {
	case at < 0:
		p.Status.Conditions = append(p.Status.Conditions, scheduled)
	case p.Status.Conditions[at].Message == why:
		return true
	default:
		p.Status.Conditions[at] = scheduled
	}
	_, err := b.client.CoreV1().Pods(p.Namespace).UpdateStatus(ctx, p, metav1.UpdateOptions{})
	if err == nil {
		b.events.Event(p, corev1.EventTypeWarning, "FailedScheduling", why)
	}
	return err == nil || apierrors.IsNotFound(err) || apierrors.IsConflict(err)
}
