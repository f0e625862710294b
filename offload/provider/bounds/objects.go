package bounds

import (
	"bytes"
	"context"
	"crypto/sha256"
	_ "embed"
	"encoding/hex"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"

	"rivulet/fabric/changes"
	"rivulet/offload/policy"
)

//go:embed observed.yaml
var observed []byte

const (
	// finalizer keeps a deleted policy or binding in force until it is replaced.
	finalizer = "rivulet.dev/in-force"
	// spareSuffix is that of the second copy of each validating policy, and of its binding: the API server acts on a
	// change within a second, and what one of the two admits in that time the other refuses.
	spareSuffix = "-spare"

	policyGroup = "admissionregistration.k8s.io"
)

// version identifies one state of an object.
type version struct {
	uid        types.UID
	generation int64  // of the spec
	going      bool   // it is deleted, except for its finalizer
	by         string // its last other writer
}

func (v version) is(other version) bool { v.by = other.by; return v == other }

func versionOf(o metav1.Object) version {
	v := version{uid: o.GetUID(), generation: o.GetGeneration(), going: o.GetDeletionTimestamp() != nil, by: "somebody"}
	last := metav1.Time{}
	for _, f := range o.GetManagedFields() {
		if f.Manager != policy.FieldManager && f.Subresource == "" && f.Time != nil && !f.Time.Before(&last) {
			last, v.by = *f.Time, f.Manager
		}
	}
	return v
}

func keyOf(o *unstructured.Unstructured) key {
	gvr, _ := meta.UnsafeGuessKindToResource(o.GroupVersionKind())
	return key{gvr, o.GetName()}
}

func isSpare(o *unstructured.Unstructured) bool { return strings.HasSuffix(o.GetName(), spareSuffix) }

// parse returns the objects of manifests, with spares and finalizers.
func parse(manifests ...[]byte) (out []*unstructured.Unstructured, err error) {
	for _, manifest := range manifests {
		objects, err := policy.Decode(manifest)
		if err != nil {
			return nil, err
		}
		for _, o := range objects {
			out = append(out, o)
			if o.GroupVersionKind().Group != policyGroup {
				continue
			}
			o.SetFinalizers([]string{finalizer})
			if !strings.HasPrefix(o.GetKind(), "Validating") {
				continue
			}
			spare := o.DeepCopy()
			spare.SetName(o.GetName() + spareSuffix)
			if of, found, _ := unstructured.NestedString(o.Object, "spec", "policyName"); found {
				_ = unstructured.SetNestedField(spare.Object, of+spareSuffix, "spec", "policyName")
			}
			out = append(out, spare)
		}
	}
	return out, nil
}

// put creates an object, or sets its spec exactly; additions are removed. Without a difference nothing is stored.
func (b *Bounds) put(ctx context.Context, o *unstructured.Unstructured) (*unstructured.Unstructured, error) {
	client := b.objects.Resource(keyOf(o).GroupVersionResource)
	for {
		now, err := client.Get(ctx, o.GetName(), metav1.GetOptions{})
		if apierrors.IsNotFound(err) {
			made, err := client.Create(ctx, o, metav1.CreateOptions{FieldManager: policy.FieldManager})
			if !apierrors.IsAlreadyExists(err) {
				return made, policy.Unserved(o, err)
			}
			continue
		}
		if err != nil {
			return nil, err
		}
		if spec, has := o.DeepCopy().Object["spec"]; has { // a PriorityClass has none, and is immutable
			now.Object["spec"] = spec
		}
		labels := now.GetLabels()
		if labels == nil {
			labels = map[string]string{}
		}
		maps.Copy(labels, o.GetLabels())
		now.SetLabels(labels)
		for _, f := range o.GetFinalizers() {
			if now.GetDeletionTimestamp() == nil && !slices.Contains(now.GetFinalizers(), f) {
				now.SetFinalizers(append(now.GetFinalizers(), f))
			}
		}
		put, err := client.Update(ctx, now, metav1.UpdateOptions{FieldManager: policy.FieldManager})
		if !apierrors.IsConflict(err) && !apierrors.IsNotFound(err) {
			return put, err
		}
	}
}

// release removes the finalizer from an object that is being deleted, and returns when it is gone.
func (b *Bounds) release(ctx context.Context, o *unstructured.Unstructured) error {
	client := b.objects.Resource(keyOf(o).GroupVersionResource)
	for {
		now, err := client.Get(ctx, o.GetName(), metav1.GetOptions{})
		if apierrors.IsNotFound(err) || err == nil && now.GetDeletionTimestamp() == nil {
			return nil
		}
		if err != nil {
			return err
		}
		if others := slices.DeleteFunc(now.GetFinalizers(), func(f string) bool { return f == finalizer }); len(others) > 0 {
			return fmt.Errorf("it was deleted, and its finalizers %v hold it: take them off", others)
		}
		now.SetFinalizers(nil)
		if _, err = client.Update(ctx, now, metav1.UpdateOptions{FieldManager: policy.FieldManager}); err != nil && !apierrors.IsConflict(err) && !apierrors.IsNotFound(err) {
			return err
		}
	}
}

const (
	// observeDeadline is how long the API server may take to act on what is stored (it checks once a second),
	// observeLook the pause between two checks: there is nothing to watch.
	observeDeadline, observeLook = 10 * time.Second, 50 * time.Millisecond
	// seenDeadline is how long a watch may lag.
	seenDeadline   = 5 * time.Second
	observedPrefix = "rivulet-observed-"
)

// observe returns when the API server acts on everything in wanted, to which it adds its own objects.
func (b *Bounds) observe(ctx context.Context, wanted map[key]version) error {
	nonce := nonceOf(wanted)
	objects, err := policy.Decode(bytes.ReplaceAll(observed, []byte("NONCE"), []byte(nonce)))
	if err != nil {
		return err
	}
	own, err := b.write(ctx, objects)
	if err != nil {
		return err
	}
	maps.Copy(wanted, own)
	name := observedPrefix + nonce
	probe := &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: name}, Data: map[string]string{"probe": nonce}}
	for deadline := time.Now().Add(observeDeadline); ; {
		_, err := b.client.CoreV1().ConfigMaps(metav1.NamespaceSystem).Create(ctx, probe, metav1.CreateOptions{DryRun: []string{metav1.DryRunAll}})
		if err != nil && strings.Contains(err.Error(), name+" is in force") {
			return nil
		}
		if time.Now().After(deadline) {
			return fmt.Errorf("the API server does not act on its admission policies: %s after they were stored, rivulet-observed does not refuse what it should (%v)", observeDeadline, err)
		}
		if !changes.Wait(ctx, observeLook) {
			return ctx.Err()
		}
	}
}

// nonceOf differs for each state of the objects, without those of observed: a state in force is confirmed without a
// write.
func nonceOf(wanted map[key]version) string {
	var lines []string
	for k, v := range wanted {
		if k.name != strings.TrimSuffix(observedPrefix, "-") {
			lines = append(lines, fmt.Sprint(k, v.uid, v.generation))
		}
	}
	slices.Sort(lines)
	sum := sha256.Sum256([]byte(strings.Join(lines, "\n")))
	return hex.EncodeToString(sum[:8])
}

// kinds are the watched ones.
var kinds = []schema.GroupVersionResource{
	{Group: policyGroup, Version: "v1", Resource: "validatingadmissionpolicies"},
	{Group: policyGroup, Version: "v1", Resource: "validatingadmissionpolicybindings"},
	{Group: policyGroup, Version: "v1beta1", Resource: "mutatingadmissionpolicies"},
	{Group: policyGroup, Version: "v1beta1", Resource: "mutatingadmissionpolicybindings"},
	{Group: "flowcontrol.apiserver.k8s.io", Version: "v1", Resource: "flowschemas"},
	{Group: "flowcontrol.apiserver.k8s.io", Version: "v1", Resource: "prioritylevelconfigurations"},
	{Group: "scheduling.k8s.io", Version: "v1", Resource: "priorityclasses"},
}
