package peerobjects

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/validation"

	"rivulet/fabric"
	"rivulet/fabric/peer"
)

// sync makes both sides match. A peer that fails does not delay the others.
func (m *mirror) sync(ctx context.Context) error {
	objects := m.objects()
	byID := map[peer.ID]*Peer{}
	names := map[string]*Peer{}
	for _, o := range objects {
		names[o.Name] = o
		if id := peer.ID(o.Labels[IDLabel]); id != "" {
			byID[id] = o
		}
	}
	all, peers := map[peer.ID]View{}, map[peer.ID]View{}
	var errs []error
	later := m.undecided()
	for _, v := range m.Peers() {
		all[v.ID] = v
		if v.Trust.How == "" {
			continue // discovered, no peer
		}
		peers[v.ID] = v
		o := byID[v.ID]
		if o == nil && later {
			continue
		}
		if o == nil {
			var err error
			if o, err = m.adopt(ctx, v, names); err != nil {
				errs = append(errs, err)
				continue
			}
			names[o.Name], byID[v.ID] = o, o
		}
		errs = append(errs, m.one(ctx, o, v))
	}
	ended := map[peer.ID]bool{}
	for _, id := range m.Departed() {
		ended[id] = true
	}
	for _, o := range objects {
		id := peer.ID(o.Labels[IDLabel])
		if _, ok := peers[id]; ok || id == "" && names[o.Name] != o {
			continue
		}
		if id == "" && o.Spec.target() != "" && o.DeletionTimestamp == nil {
			errs = append(errs, m.follow(ctx, o, all, byID))
			continue
		}
		v := all[id]
		errs = append(errs, m.stray(ctx, o, id, ended[id] || v.State == peer.Denied, v))
	}
	return errors.Join(errs...)
}

// adopt creates the object of a new peer, or uses one that the user wrote before: one with a wish for it, or one with
// its name and no wish.
func (m *mirror) adopt(ctx context.Context, v View, names map[string]*Peer) (*Peer, error) {
	o := m.wished(v.ID, names)
	name := objectName(v.Name, v.ID, names)
	if o == nil {
		o = names[name]
	}
	if o != nil {
		own := o.DeepCopyMeta()
		own.Labels = with(own.Labels, IDLabel, string(v.ID))
		if !slices.Contains(own.Finalizers, Finalizer) {
			own.Finalizers = append(own.Finalizers, Finalizer)
		}
		return m.write(ctx, own, false)
	}
	o = &Peer{ObjectMeta: metav1.ObjectMeta{Name: name, Labels: map[string]string{IDLabel: string(v.ID)}, Finalizers: []string{Finalizer}}}
	u, err := toAPI(o)
	if err != nil {
		return nil, err
	}
	unset(u.Object)
	got, err := m.client.Create(ctx, u, metav1.CreateOptions{FieldManager: "rivulet"})
	if err != nil {
		return nil, fmt.Errorf("peers: create %s: %w", name, err)
	}
	return fromAPI(got)
}

// objectName is the peer's name, if that is valid and unique for an object; else its ID is added.
func objectName(name string, id peer.ID, names map[string]*Peer) string {
	label := strings.ToLower(name)
	if len(validation.IsDNS1123Label(label)) > 0 {
		return "peer-" + id.Short()
	}
	if o := names[label]; o != nil && (o.Labels[IDLabel] != "" || o.DeletionTimestamp != nil || o.Spec.target() != "") {
		if room := validation.DNS1123LabelMaxLength - len(id.Short()) - 1; len(label) > room {
			label = strings.TrimRight(label[:room], "-")
		}
		return label + "-" + id.Short()
	}
	return label
}

// one makes an object and its peer match.
func (m *mirror) one(ctx context.Context, o *Peer, v View) error {
	if o.DeletionTimestamp != nil {
		return m.end(ctx, o, v)
	}
	if !slices.Contains(o.Finalizers, Finalizer) { // another program has removed it
		own := o.DeepCopyMeta()
		own.Finalizers = append(own.Finalizers, Finalizer)
		var err error
		if o, err = m.write(ctx, own, false); err != nil {
			return err
		}
	}
	o, v, err := m.settings(ctx, o, v)
	if err != nil {
		return err
	}
	old := o.Status
	if last, ok := m.shaped[o.Name]; ok && last.ID == string(v.ID) {
		old = last // the watch may lag behind
	}
	want := fresh(old, o.Generation, v)
	if equality.Semantic.DeepEqual(old, want) {
		return nil
	}
	next := o.DeepCopyMeta()
	next.Status = want
	if _, err := m.write(ctx, next, true); err != nil {
		delete(m.shaped, o.Name)
		return err
	}
	m.shaped[o.Name] = want
	if old.State != want.State {
		m.report(o, old, v)
	}
	return nil
}

// settings copies the side that changed: the spec, if it has a new generation, or else the fabric.
func (m *mirror) settings(ctx context.Context, o *Peer, v View) (*Peer, View, error) {
	change := o.Spec.settings(v.Record)
	if change.Empty() {
		return o, v, nil
	}
	if o.Generation != o.Status.ObservedGeneration {
		now, err := m.Set(ctx, string(v.ID), change)
		if err != nil {
			m.recorder.Eventf(reference(o), corev1.EventTypeWarning, "SettingsFailed", "the settings of the spec are not in force: %v", err)
			return o, v, fmt.Errorf("peers: settings of %s: %w", o.Name, err)
		}
		m.recorder.Eventf(reference(o), corev1.EventTypeNormal, "Settings", "as the spec says: %s", spell(o.Spec))
		v.Record = now.Record
		return o, v, nil
	}
	// The command line has changed it: update the spec.
	next := o.DeepCopyMeta()
	next.Spec = next.Spec.as(v.Record)
	o, err := m.write(ctx, next, false)
	return o, v, err
}

// end handles a deletion: it ends the peering, and then the object.
func (m *mirror) end(ctx context.Context, o *Peer, v View) error {
	if !slices.Contains(o.Finalizers, Finalizer) {
		return nil // another finalizer delays it
	}
	if _, err := m.Unpeer(ctx, string(v.ID), fabric.Unpeer{Force: o.Annotations[ForceAnnotation] == "true"}); err != nil {
		m.recorder.Eventf(reference(o), corev1.EventTypeWarning, "UnpeerFailed", "%v; or: kubectl annotate peer %s %s=true", err, o.Name, ForceAnnotation)
		return fmt.Errorf("peers: unpeer %s: %w", o.Name, err)
	}
	m.recorder.Event(reference(o), corev1.EventTypeNormal, "Unpeered", "the object was deleted, so the peering has ended")
	return m.release(ctx, o)
}

// stray handles an object whose cluster is no peer; ended: its peering has ended, or a person has denied it. v is what is known of it, if anything.
func (m *mirror) stray(ctx context.Context, o *Peer, id peer.ID, ended bool, v View) error {
	if o.DeletionTimestamp != nil {
		if id == "" {
			if err := m.unwish(ctx, o); err != nil {
				return err
			}
		}
		return m.release(ctx, o)
	}
	if id == "" { // written by the user, for a peer that does not exist yet
		return m.noPeer(ctx, o, Status{}, "no peer has this name; spec.address or spec.id would make one, as `rivulet peer` does. It is taken up when there is one")
	}
	if !ended {
		delete(m.shaped, o.Name)
		name := cmp.Or(v.Name, o.Status.Name, o.Name)
		return m.noPeer(ctx, o, Status{ID: string(id), Name: name, State: string(v.State), Reason: v.Reason}, fmt.Sprintf(
			"this cluster is no peer, and no peering with it was ended: its record may be missing after a restore. It is taken up when it is one again: rivulet peer %s; or, if it is none for good: kubectl delete peer %s", id, o.Name))
	}
	m.recorder.Event(reference(o), corev1.EventTypeNormal, "Unpeered", "the cluster is no peer any more")
	if err := m.client.Delete(ctx, o.Name, metav1.DeleteOptions{Preconditions: &metav1.Preconditions{UID: &o.UID}}); err != nil && !apierrors.IsNotFound(err) {
		return fmt.Errorf("peers: delete %s: %w", o.Name, err)
	}
	return m.release(ctx, o)
}

// noPeer writes the status of an object without a peer. Its generation is not observed: what its spec says is applied
// once there is a peer.
func (m *mirror) noPeer(ctx context.Context, o *Peer, want Status, message string) error {
	ready := metav1.Condition{Type: Ready, Status: metav1.ConditionFalse, ObservedGeneration: o.Generation, Reason: "NoPeer", Message: message, LastTransitionTime: o.CreationTimestamp}
	for _, c := range o.Status.Conditions {
		if c.Type == Ready && c.Status == ready.Status {
			ready.LastTransitionTime = c.LastTransitionTime
		}
	}
	want.Conditions = []metav1.Condition{ready}
	return m.status(ctx, o, want)
}

// release removes the finalizer.
func (m *mirror) release(ctx context.Context, o *Peer) error {
	delete(m.shaped, o.Name)
	if !slices.Contains(o.Finalizers, Finalizer) {
		return nil
	}
	got, err := m.client.Get(ctx, o.Name, metav1.GetOptions{})
	if apierrors.IsNotFound(err) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("peers: release %s: %w", o.Name, err)
	}
	got.SetFinalizers(slices.DeleteFunc(got.GetFinalizers(), func(f string) bool { return f == Finalizer }))
	if _, err := m.client.Update(ctx, got, metav1.UpdateOptions{FieldManager: "rivulet"}); err != nil && !apierrors.IsNotFound(err) {
		return fmt.Errorf("peers: release %s: %w", o.Name, err)
	}
	return nil
}

// status writes a status if it changed.
func (m *mirror) status(ctx context.Context, o *Peer, want Status) error {
	if equality.Semantic.DeepEqual(o.Status, want) {
		return nil
	}
	next := o.DeepCopyMeta()
	next.Status = want
	_, err := m.write(ctx, next, true)
	return err
}

// write updates an object, or its status only.
func (m *mirror) write(ctx context.Context, o *Peer, status bool) (*Peer, error) {
	u, err := toAPI(o)
	if err != nil {
		return nil, err
	}
	var part []string
	if status {
		part = append(part, "status")
	}
	got, err := m.client.Update(ctx, u, metav1.UpdateOptions{FieldManager: "rivulet"}, part...)
	if err != nil {
		return nil, fmt.Errorf("peers: update %s: %w", o.Name, err)
	}
	return fromAPI(got)
}

// report emits an event for a changed state.
func (m *mirror) report(o *Peer, old Status, v View) {
	kind := corev1.EventTypeNormal
	if v.State == peer.Lost || v.State == peer.Refused {
		kind = corev1.EventTypeWarning
	}
	text := v.Reason
	switch {
	case old.State == "":
		m.recorder.Eventf(reference(o), corev1.EventTypeNormal, "Peered", "%s is a peer; %s", v.Name, v.Trust)
		if v.State != peer.Connected {
			return
		}
		text = "it answers through the tunnel"
	case v.State == peer.Connected:
		text = "it answers through the tunnel, after " + strings.ToLower(old.State)
	case text == "":
		text = "after " + strings.ToLower(old.State)
	}
	m.recorder.Event(reference(o), kind, string(v.State), text)
}

func reference(o *Peer) *corev1.ObjectReference {
	return &corev1.ObjectReference{APIVersion: groupVersion.String(), Kind: Kind, Name: o.Name, UID: o.UID, ResourceVersion: o.ResourceVersion}
}

func spell(s Spec) string {
	var out []string
	for _, r := range []struct {
		name string
		on   *bool
	}{{"consume", s.Consume}, {"provide", s.Provide}} {
		if r.on != nil {
			out = append(out, fmt.Sprintf("%s %v", r.name, *r.on))
		}
	}
	if s.Price != nil {
		out = append(out, fmt.Sprintf("price %d", *s.Price))
	}
	for _, key := range slices.Sorted(maps.Keys(s.Labels)) {
		out = append(out, key+"="+s.Labels[key])
	}
	return strings.Join(out, ", ")
}

// DeepCopyMeta returns a copy that shares no lists or maps of metadata.
func (p *Peer) DeepCopyMeta() *Peer {
	out := *p
	out.ObjectMeta = *p.ObjectMeta.DeepCopy()
	return &out
}

func with(labels map[string]string, key, value string) map[string]string {
	if labels == nil {
		labels = map[string]string{}
	}
	labels[key] = value
	return labels
}

// unset removes fields that the API server sets.
func unset(object map[string]any) { delete(object, "status") }
