package volume

import (
	"cmp"
	"context"
	"errors"
	"log/slog"
	"maps"
	"reflect"
	"slices"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/kubernetes/fake"
	corelisters "k8s.io/client-go/listers/core/v1"
	storagelisters "k8s.io/client-go/listers/storage/v1"
	ktesting "k8s.io/client-go/testing"
	"k8s.io/client-go/tools/cache"
	"k8s.io/utils/ptr"

	"rivulet/offload/policy"
	"rivulet/offload/target"
)

type twinOfLab struct {
	target.Target
	api  kubernetes.Interface
	also map[string]string // further twins
	id   string            // "" is b
}

func (t twinOfLab) ID() string                   { return cmp.Or(t.id, "b") }
func (t twinOfLab) Client() kubernetes.Interface { return t.api }
func (t twinOfLab) Twins(context.Context) (twins map[string]string, _ error) {
	twins = map[string]string{"lab": "lab-a"}
	maps.Copy(twins, t.also)
	return twins, nil
}

// made is a claim in a twin that home has made at a moment.
func made(namespace, name, volume, moment string) *corev1.PersistentVolumeClaim {
	out := &corev1.PersistentVolumeClaim{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: name, UID: types.UID("away-" + name),
		Labels: map[string]string{policy.OriginLabel: "a", VolumeLabel: volume}, Annotations: map[string]string{HomeClaimAnnotation: "data"}}}
	if moment != "" {
		out.Annotations[HistoryAnnotation] = moment
	}
	return out
}

// history is the ConfigMap of a history.
func history(uid string) *corev1.ConfigMap {
	return &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Namespace: metav1.NamespaceSystem, Name: HistoryName, UID: types.UID(uid)}}
}

// Two who begin a history at once have the same one.
func TestAHistoryThatAnotherBegins(t *testing.T) {
	home := fake.NewClientset()
	home.PrependReactor("create", "configmaps", func(ktesting.Action) (bool, runtime.Object, error) {
		must(t, home.Tracker().Add(history("1")))
		return true, nil, apierrors.NewAlreadyExists(corev1.Resource("configmaps"), HistoryName)
	})
	now, err := Now(t.Context(), home)
	if must(t, err); now.history != "1" {
		t.Errorf("%v", now)
	}
}

// controller is one whose caches have what home has now.
func controller(t *testing.T, home *fake.Clientset) *Controller {
	t.Helper()
	volumes, classes := cache.NewIndexer(cache.MetaNamespaceKeyFunc, nil), cache.NewIndexer(cache.MetaNamespaceKeyFunc, nil)
	list, err := home.CoreV1().PersistentVolumes().List(t.Context(), metav1.ListOptions{})
	must(t, err)
	for i := range list.Items {
		must(t, volumes.Add(&list.Items[i]))
	}
	must(t, classes.Add(&storagev1.StorageClass{ObjectMeta: metav1.ObjectMeta{Name: "local-path"}, Provisioner: Provisioner}))
	c := New(Config{Home: home, Cluster: "a", Log: slog.New(slog.DiscardHandler), Peer: func(string) string { return "b" }})
	c.volumes, c.classes = corelisters.NewPersistentVolumeLister(volumes), storagelisters.NewStorageClassLister(classes)
	return c
}

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// left are the claims of a cluster, each with the value of RetainedLabel.
func left(t *testing.T, there *fake.Clientset) map[string]string {
	t.Helper()
	list, err := there.CoreV1().PersistentVolumeClaims("").List(t.Context(), metav1.ListOptions{})
	must(t, err)
	out := map[string]string{}
	for _, claim := range list.Items {
		out[claim.Name] = claim.Labels[RetainedLabel]
	}
	return out
}

// owner is who has made a place that is up.
type owner struct {
	offloaded func(namespace string) bool
	freed     []string
}

func (o *owner) Offloaded(namespace string) bool { return o.offloaded(namespace) }
func (*owner) Up() bool                          { return true }
func (o *owner) Freed(namespace string)          { o.freed = append(o.freed, namespace) }

func all(string) bool { return true }

// In twins to which home has sent nothing, which the target may name as it likes, nothing is written.
func TestOnlyKnownTwinsAreChanged(t *testing.T) {
	v := Volume(&corev1.PersistentVolumeClaim{ObjectMeta: metav1.ObjectMeta{Namespace: "kept", Name: "data", UID: "1"}}, nil, "pvc-1", "b", "b")
	home, there := fake.NewClientset(v, history("one")), fake.NewClientset(made("lab-a", "x", "pvc-none", "one.0"), made("kept-a", "x", "pvc-none", "one.0"), made("y", "x", "pvc-none", "one.0"), made("default", "x", "pvc-none", ""))
	c := controller(t, home)
	place := &Place{Node: "b", Target: twinOfLab{api: there, also: map[string]string{"x": "y", "default": "default", "kept": "kept-a"}},
		Owner: &owner{offloaded: func(ns string) bool { return ns == "lab" }}}
	c.places["b"] = place
	must(t, c.removeOrphans(t.Context(), place))
	asked := map[string][]string{}
	for _, a := range there.Actions() {
		asked[a.GetNamespace()] = append(asked[a.GetNamespace()], a.GetVerb())
	}
	if want := map[string][]string{"lab-a": {"list", "delete"}, "kept-a": {"list", "delete"}, "y": {"list"}, "default": {"list"}}; !reflect.DeepEqual(asked, want) {
		t.Errorf("asked for %v, want %v", asked, want)
	}
	if got := c.Unknown(); len(got) > 0 {
		t.Errorf("the target makes a problem of its own: %v", got)
	}
}

// What home's API does not know is deleted only if that API is not older than it: a datastore that was put back knows
// nothing of what was made since.
func TestAnOlderHomeDeletesNothing(t *testing.T) {
	for what, moment := range map[string]string{"another history": "before.0", "no history, of an earlier version": "", "damaged": "one", "a moment to come, as after a disk image": "one.7"} {
		home, there := fake.NewClientset(history("one")), fake.NewClientset(made("lab-a", "x", "moved-1", moment))
		c := controller(t, home)
		p := &Place{Node: "b", Target: twinOfLab{api: there}, Owner: &owner{offloaded: all}}
		c.places["b"] = p
		for range 2 { // the label keeps it, whatever comes
			must(t, c.removeOrphans(t.Context(), p))
			if got := left(t, there); got["x"] != retainedUnknown {
				t.Errorf("%s: left are %v", what, got)
			}
			if got := c.Unknown()["b"]; len(got) != 1 || got[0] != "b/lab/x" {
				t.Errorf("%s: shown is %v", what, got)
			}
		}
	}
	// Home's history begins with the first look, and what is older is not of it.
	home, there := fake.NewClientset(), fake.NewClientset(made("lab-a", "x", "moved-1", "one.0"))
	c := controller(t, home)
	must(t, c.removeOrphans(t.Context(), &Place{Node: "b", Target: twinOfLab{api: there}, Owner: &owner{offloaded: all}}))
	if got := left(t, there); got["x"] != retainedUnknown {
		t.Errorf("left are %v", got)
	}
}

// An image of a card that is put back has the same history. Its datastore leaps at the start, and so passes revisions that it
// has never given: claims of before the leap are kept, those made since are deleted.
func TestAnImageThatIsPutBackDeletesNothing(t *testing.T) {
	// The image is of revision 5000; 7000 was given after it was taken, and 1000005100 is after its leap.
	const leapt = "1000005100"
	h := history("one")
	h.ResourceVersion = "100"
	home, there := fake.NewClientset(h), fake.NewClientset(made("lab-a", "before", "moved-1", "one.5000"), made("lab-a", "later", "moved-2", "one.7000"), made("lab-a", "after", "moved-3", "one."+leapt))
	revision := leapt
	home.PrependReactor("list", "configmaps", func(ktesting.Action) (bool, runtime.Object, error) {
		return true, &corev1.ConfigMapList{ListMeta: metav1.ListMeta{ResourceVersion: revision}, Items: []corev1.ConfigMap{*h}}, nil
	})
	writes := 0
	home.PrependReactor("update", "configmaps", func(a ktesting.Action) (bool, runtime.Object, error) {
		writes++
		h = a.(ktesting.UpdateAction).GetObject().(*corev1.ConfigMap).DeepCopy()
		h.ResourceVersion = leapt
		return true, h, nil
	})
	c := controller(t, home)
	p := &Place{Node: "b", Target: twinOfLab{api: there}, Owner: &owner{offloaded: all}}
	c.places["b"] = p
	must(t, c.removeOrphans(t.Context(), p))
	if got, want := left(t, there), map[string]string{"before": retainedUnknown, "later": retainedUnknown}; !reflect.DeepEqual(got, want) || writes != 1 {
		t.Errorf("left are %v after %d writes, want %v", got, writes, want)
	}
	revision = "1000005200"
	now, err := Now(t.Context(), home)
	must(t, err)
	if !now.Follows("one.7000") || now.Continues("one.7000") || !now.Continues("one."+leapt) || now.Continues("one.1000005201") || writes != 1 {
		t.Errorf("%v after %d writes", now, writes)
	}
}

// A claim is wanted by what home has when it is deleted, not by what home had when the search began, and a volume of its
// name at another place does not want it.
func TestWantedIsReadForEachClaim(t *testing.T) {
	note := func(to, volume string) *corev1.PersistentVolume {
		v := Volume(&corev1.PersistentVolumeClaim{ObjectMeta: metav1.ObjectMeta{Namespace: "lab", Name: "data"}}, nil, "old-"+volume, "here", "here")
		v.Annotations[MoveAnnotation] = `{"to":"` + to + `","volume":"` + volume + `"}`
		return v
	}
	elsewhere := Volume(&corev1.PersistentVolumeClaim{ObjectMeta: metav1.ObjectMeta{Namespace: "lab", Name: "data"}}, nil, "moved-1", "c", "c")
	pending := &corev1.PersistentVolumeClaim{ObjectMeta: metav1.ObjectMeta{Namespace: "lab", Name: "pending", UID: "2"}}
	bound := &corev1.PersistentVolumeClaim{ObjectMeta: metav1.ObjectMeta{Namespace: "lab", Name: "bound", UID: "3"}, Spec: corev1.PersistentVolumeClaimSpec{VolumeName: "pvc-3"}}
	atC := Volume(&corev1.PersistentVolumeClaim{ObjectMeta: metav1.ObjectMeta{Namespace: "lab", Name: "bound"}}, nil, "pvc-3", "c", "c")
	lost := &corev1.PersistentVolumeClaim{ObjectMeta: metav1.ObjectMeta{Namespace: "lab", Name: "lost", UID: "6"}, Spec: corev1.PersistentVolumeClaimSpec{VolumeName: "pvc-6"}, Status: corev1.PersistentVolumeClaimStatus{Phase: corev1.ClaimLost}}
	late := Volume(&corev1.PersistentVolumeClaim{ObjectMeta: metav1.ObjectMeta{Namespace: "lab", Name: "late"}}, nil, "pvc-9", "b", "b")
	home := fake.NewClientset(history("one"), elsewhere, pending, bound, atC, lost, note("b", "moved-4"), note("c", "moved-5"))
	there := fake.NewClientset()
	for name, volume := range map[string]string{"half-copy": "moved-1", "pending": "pvc-2", "bound-at-c": "pvc-3", "moving-here": "moved-4", "moving-to-c": "moved-5", "nobodys": "pvc-8", "lost": "pvc-6", "z-late": "pvc-9"} {
		must(t, there.Tracker().Add(made("lab-a", name, volume, "one.0")))
	}
	there.PrependReactor("delete", "*", func(ktesting.Action) (bool, runtime.Object, error) { // it is made during the search
		_ = home.Tracker().Add(late)
		return false, nil, nil
	})
	c := controller(t, home)
	p := &Place{Node: "b", Target: twinOfLab{api: there}, Owner: &owner{offloaded: all}}
	c.places["b"], c.places["c"] = p, &Place{Node: "c", Target: twinOfLab{id: "c"}, Owner: &owner{offloaded: all}}
	must(t, c.removeOrphans(t.Context(), p))
	if got, want := left(t, there), map[string]string{"pending": "", "moving-here": "", "lost": "", "z-late": ""}; !reflect.DeepEqual(got, want) {
		t.Errorf("left are %v, want %v", got, want)
	}
}

// A label that cannot be written does not end the search, and home's API is listed once for all such claims.
func TestASearchGoesOn(t *testing.T) {
	home, there := fake.NewClientset(history("one")), fake.NewClientset(made("lab-a", "x", "moved-1", ""), made("lab-a", "y", "moved-2", ""), made("lab-a", "z", "moved-3", ""),
		made("lab-a", "$(reboot)", "moved-4", ""))
	there.PrependReactor("update", "*", func(a ktesting.Action) (bool, runtime.Object, error) {
		return a.(ktesting.UpdateAction).GetObject().(*corev1.PersistentVolumeClaim).Name == "x", nil, errors.New("refused")
	})
	c := controller(t, home)
	p := &Place{Node: "b", Target: twinOfLab{api: there}, Owner: &owner{offloaded: all}}
	c.places["b"] = p
	home.ClearActions()
	if err := c.removeOrphans(t.Context(), p); err == nil || !strings.Contains(err.Error(), "refused") {
		t.Error(err)
	}
	if got, want := left(t, there), map[string]string{"x": "", "y": retainedUnknown, "z": retainedUnknown, "$(reboot)": ""}; !reflect.DeepEqual(got, want) {
		t.Errorf("left are %v", got)
	}
	if got, want := c.Unknown()["b"], []string{"b/lab/x", "b/lab/y", "b/lab/z"}; !reflect.DeepEqual(got, want) {
		t.Errorf("shown are %v", got)
	}
	if n := len(home.Actions()); n != 3 {
		t.Errorf("home was asked %d times", n)
	}
}

// An adoption ends with what is on home's disk, and takes no volume of others.
func TestAdoptIsOnTheDiskFirst(t *testing.T) {
	ctx := t.Context()
	claim := &corev1.PersistentVolumeClaim{ObjectMeta: metav1.ObjectMeta{Namespace: "lab", Name: "other"}}
	adopt := func(volume *corev1.PersistentVolume) (order []string, home *fake.Clientset, err error) {
		home = fake.NewClientset(history("two"))
		if volume != nil {
			must(t, home.Tracker().Add(volume))
		}
		there := fake.NewClientset(made("lab-a", "x", "moved-1", "one.0"))
		c := controller(t, fake.NewClientset())
		c.cfg.Home = home
		c.places["b"] = &Place{Node: "b", Target: twinOfLab{api: there}, Owner: &owner{offloaded: all}}
		home.PrependReactor("create", "persistentvolumeclaims", func(a ktesting.Action) (bool, runtime.Object, error) {
			dry := len(a.(ktesting.CreateActionImpl).GetCreateOptions().DryRun) > 0
			order = append(order, map[bool]string{true: "claim, dry", false: "claim"}[dry])
			return dry, claim, nil
		})
		note := func(what string) ktesting.ReactionFunc {
			return func(ktesting.Action) (bool, runtime.Object, error) {
				order = append(order, what)
				return false, nil, nil
			}
		}
		home.PrependReactor("create", "persistentvolumes", note("volume"))
		home.PrependReactor("get", "persistentvolumes", note("read"))
		there.PrependReactor("update", "*", note("peer"))
		_, err = c.Adopt(ctx, "b/lab/x", "old")
		return order, home, err
	}
	if got, _, err := adopt(nil); err != nil || !reflect.DeepEqual(got, []string{"claim, dry", "volume", "claim", "read", "peer"}) {
		t.Errorf("%v %v", got, err)
	}
	// An earlier try was for another name.
	v := Volume(claim, nil, Name("away-x"), "b", "b")
	v.Annotations[ClaimAnnotation] = "x"
	_, home, err := adopt(v.DeepCopy())
	must(t, err)
	if now, err := home.CoreV1().PersistentVolumes().Get(ctx, v.Name, metav1.GetOptions{}); err != nil || now.Spec.ClaimRef.Name != "old" {
		t.Errorf("%+v %v", now, err)
	}
	for what, change := range map[string]func(*corev1.PersistentVolume){
		"of a claim":       func(v *corev1.PersistentVolume) { v.Spec.ClaimRef.UID = "7" },
		"at another place": func(v *corev1.PersistentVolume) { v.Labels[AwayLabel] = "c" },
		"of other data":    func(v *corev1.PersistentVolume) { v.Annotations[ClaimAnnotation] = "y" },
	} {
		other := v.DeepCopy()
		change(other)
		got, _, err := adopt(other)
		if err == nil || !strings.Contains(err.Error(), "kubectl describe pv") || slices.Contains(got, "peer") || slices.Contains(got, "claim") {
			t.Errorf("%s: %v %v", what, got, err)
		}
	}
}

// A person brings back what home does not know, or deletes it.
func TestAdoptAndDiscard(t *testing.T) {
	ctx := t.Context()
	taken := &corev1.PersistentVolumeClaim{ObjectMeta: metav1.ObjectMeta{Namespace: "lab", Name: "data", UID: "5"}, Spec: corev1.PersistentVolumeClaimSpec{VolumeName: "pvc-5"}}
	home, there := fake.NewClientset(history("two"), taken), fake.NewClientset(made("lab-a", "x", "moved-1", "one.0"), made("lab-a", "y", "moved-2", "one.0"))
	c := controller(t, home)
	offloaded := false
	p := &Place{Node: "b", Target: twinOfLab{api: there}, Owner: &owner{offloaded: func(string) bool { return offloaded }}}
	c.places["b"] = p
	refused := func(named, as, want string) {
		t.Helper()
		if _, err := c.Adopt(ctx, named, as); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s as %q: %v, want %q", named, as, err, want)
		}
	}
	refused("b/lab/x", "", "rivulet offload lab --create --to b")
	offloaded = true
	must(t, c.removeOrphans(ctx, p))
	refused("x", "", "no NODE/NAMESPACE/CLAIM")
	refused("c/lab/x", "", "no virtual node c")
	refused("b/lab/z", "", "no claim b/lab/z")
	refused("b/lab/x", "", "rivulet volumes adopt b/lab/x --as NAME")
	v, err := c.View(ctx)
	must(t, err)
	if len(v.Kept) != 2 || v.Kept[0].Ref != "b/lab/x" || v.Kept[0].Claim != "lab/data" || len(v.Away) != 0 {
		t.Errorf("%+v", v)
	}
	broken := true
	there.PrependReactor("update", "*", func(ktesting.Action) (bool, runtime.Object, error) { // the link is cut at the last step
		return broken, nil, errors.New("cut")
	})
	refused("b/lab/x", "old", "cut")
	broken = false
	if got, err := c.Adopt(ctx, "b/lab/x", "old"); err != nil || got != "lab/old" {
		t.Fatalf("%q %v", got, err)
	}
	c2 := controller(t, home) // whose cache has the new volume
	c2.places["b"] = p
	must(t, c2.removeOrphans(ctx, p))
	if got := left(t, there); got["x"] != "" || got["y"] != retainedUnknown {
		t.Errorf("left are %v", got)
	}
	claim, err := home.CoreV1().PersistentVolumeClaims("lab").Get(ctx, "old", metav1.GetOptions{})
	must(t, err)
	volume, err := home.CoreV1().PersistentVolumes().Get(ctx, claim.Spec.VolumeName, metav1.GetOptions{})
	must(t, err)
	away, _, err := c2.away(ctx, p, volume)
	if err != nil || away == nil || away.Name != "x" || volume.Spec.ClaimRef.Name != "old" || volume.Labels[AwayLabel] != "b" || *claim.Spec.StorageClassName != volume.Spec.StorageClassName {
		t.Errorf("%+v %+v %+v %v", away, volume, claim, err)
	}
	if err := c2.Discard(ctx, "b/lab/x"); err == nil {
		t.Error("data of a claim are deleted")
	}
	must(t, c2.Discard(ctx, "b/lab/y"))
	if got := left(t, there); len(got) != 1 {
		t.Errorf("left are %v", got)
	}
}

// The end of data away is reported when the target has confirmed it, not when it was requested, and only then does the
// volume's object go.
func TestTheEndOfDataIsReportedWhenItIsConfirmed(t *testing.T) {
	ctx := t.Context()
	v := Volume(&corev1.PersistentVolumeClaim{ObjectMeta: metav1.ObjectMeta{Namespace: "lab", Name: "data", UID: "1"}}, nil, "pvc-1", "b", "b")
	v.DeletionTimestamp, v.Status.Phase = ptr.To(metav1.Now()), corev1.VolumeReleased
	home, there := fake.NewClientset(v), fake.NewClientset(&corev1.PersistentVolumeClaim{
		ObjectMeta: metav1.ObjectMeta{Namespace: "lab-a", Name: AwayName("data", "pvc-1"), Labels: map[string]string{VolumeLabel: "pvc-1"}}})
	volumes := cache.NewIndexer(cache.MetaNamespaceKeyFunc, nil)
	if err := volumes.Add(v); err != nil {
		t.Fatal(err)
	}
	c := New(Config{Home: home, Log: slog.New(slog.DiscardHandler), Peer: func(string) string { return "b" }})
	c.volumes = corelisters.NewPersistentVolumeLister(volumes)
	of := &owner{offloaded: all}
	c.Serve(&Place{Node: "b", Target: twinOfLab{api: there}, Owner: of})

	if err := c.syncVolume(ctx, v.Name); err == nil || len(of.freed) > 0 {
		t.Fatalf("requested, not confirmed: %v, %v", err, of.freed)
	}
	if err := c.syncVolume(ctx, v.Name); err != nil || len(of.freed) != 1 || of.freed[0] != "lab" {
		t.Fatalf("confirmed: %v, %v", err, of.freed)
	}
	if now, err := home.CoreV1().PersistentVolumes().Get(ctx, v.Name, metav1.GetOptions{}); err == nil && len(now.Finalizers) > 0 {
		t.Errorf("the volume is kept: %v", now.Finalizers)
	}
}

// TestAClaimAwayGoesByWhatHomesDatastoreHas: a power cut at home may take back what home's watchers were told.
func TestAClaimAwayGoesByWhatHomesDatastoreHas(t *testing.T) {
	was := Volume(&corev1.PersistentVolumeClaim{ObjectMeta: metav1.ObjectMeta{Namespace: "lab", Name: "data", UID: "1"}}, nil, "pvc-1", "b", "b")
	was.UID, was.DeletionTimestamp, was.Status.Phase = "1", ptr.To(metav1.Now()), corev1.VolumeReleased
	for what, change := range map[string]func(*corev1.PersistentVolume){
		"not deleted": func(v *corev1.PersistentVolume) { v.DeletionTimestamp = nil },
		"retained": func(v *corev1.PersistentVolume) {
			v.Spec.PersistentVolumeReclaimPolicy = corev1.PersistentVolumeReclaimRetain
		},
		"being moved":  func(v *corev1.PersistentVolume) { v.Annotations[MoveAnnotation] = "{}" },
		"another one":  func(v *corev1.PersistentVolume) { v.UID = "2" },
		"not there":    func(v *corev1.PersistentVolume) { v.Name = "pvc-2" },
		"as it was":    func(*corev1.PersistentVolume) {},
		"not readable": nil,
	} {
		live := was.DeepCopy()
		if change != nil {
			change(live)
		}
		home, there := fake.NewClientset(live), fake.NewClientset(&corev1.PersistentVolumeClaim{
			ObjectMeta: metav1.ObjectMeta{Namespace: "lab-a", Name: AwayName("data", "pvc-1"), Labels: map[string]string{VolumeLabel: "pvc-1"}}})
		if change == nil {
			home.PrependReactor("get", "persistentvolumes", func(ktesting.Action) (bool, runtime.Object, error) { return true, nil, errors.New("the disk fails") })
		}
		c := New(Config{Home: home, Log: slog.New(slog.DiscardHandler), Peer: func(string) string { return "b" }})
		c.Serve(&Place{Node: "b", Target: twinOfLab{api: there}, Owner: &owner{offloaded: all}})
		if err := c.purge(t.Context(), was); err == nil {
			t.Errorf("%s: it is done", what)
		}
		left, err := there.CoreV1().PersistentVolumeClaims("lab-a").List(t.Context(), metav1.ListOptions{})
		if want := map[bool]int{true: 0, false: 1}[what == "as it was"]; err != nil || len(left.Items) != want {
			t.Errorf("%s: %d claims are left (%v), want %d", what, len(left.Items), err, want)
		}
	}
}
