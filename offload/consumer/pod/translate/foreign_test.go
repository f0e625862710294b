package translate

import (
	"encoding/json"
	"net/netip"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"rivulet/offload/consumer/pod/translate/translatetest"
	"rivulet/offload/foreign"
)

// Quantities of a provider that are out of bounds do not reach home's API server; the rest of the status does.
func TestQuantitiesOfAProvider(t *testing.T) {
	for _, q := range []string{"1500m", "1e900"} {
		home, away := translatetest.Ungated(), translatetest.Running()
		all := corev1.ResourceList{"cpu": resource.MustParse(q)}
		asked := corev1.ResourceRequirements{Requests: corev1.ResourceList{"cpu": resource.MustParse("1")}, Limits: corev1.ResourceList{"cpu": resource.MustParse("1")}}
		home.Spec.Resources, home.Spec.Containers[0].Resources = &asked, asked
		away.Status.AllocatedResources = all.DeepCopy()
		away.Status.ContainerStatuses[1].AllocatedResources = all.DeepCopy()
		away.Status.ContainerStatuses[1].Resources = &corev1.ResourceRequirements{Limits: all}
		got := Status(home, Away{Pod: away}, View{Node: "b", HostIP: netip.MustParseAddr("127.0.0.1"), Home: func(a netip.Addr) (netip.Addr, bool) { return a, true }})
		if got.Phase != corev1.PodRunning || len(got.ContainerStatuses) != 1 {
			t.Fatalf("%s: %+v", q, got)
		}
		if c := got.ContainerStatuses[0]; (q == "1500m") != (len(got.AllocatedResources) == 1) || (q == "1500m") != (c.Resources != nil) || foreign.Quantities(got) != nil {
			t.Errorf("%s: %+v", q, got)
		}
	}
}

// A provider that names a container in letters that are not kept does not have it counted as restarted with each look.
func TestUnfitNamesOfContainers(t *testing.T) {
	home, away := translatetest.Ungated(), translatetest.Running()
	away.Status.ContainerStatuses[1].ContainerID = "\x7fc-1"
	for range 3 {
		home.Status = Status(home, Away{Pod: away}, View{Node: "b", HostIP: netip.MustParseAddr("127.0.0.1"), Home: func(a netip.Addr) (netip.Addr, bool) { return a, true }})
	}
	if c := home.Status.ContainerStatuses[0]; c.RestartCount != 0 || c.ContainerID != "c-1" {
		t.Errorf("%+v", c)
	}
}

// FuzzStatus: a pod and an event that come back from a provider are translated whatever they have, and the result is one
// that home can compare and keep.
func FuzzStatus(f *testing.F) {
	add := func(p *corev1.Pod, e *corev1.Event) {
		pod, err := json.Marshal(p)
		if err != nil {
			f.Fatal(err)
		}
		event, err := json.Marshal(e)
		if err != nil {
			f.Fatal(err)
		}
		f.Add(pod, event, true)
		f.Add(pod, event, false)
	}
	ended := translatetest.Running()
	ended.Status.Phase, ended.Status.ContainerStatuses[1].State = corev1.PodFailed, translatetest.Exit(3)
	event := &corev1.Event{InvolvedObject: corev1.ObjectReference{Kind: "Pod", Name: "x", FieldPath: "spec.containers{web}"}, Type: "Warning", Reason: "BackOff", Message: "x",
		FirstTimestamp: translatetest.Then, Series: &corev1.EventSeries{Count: 2}}
	add(translatetest.Running(), event)
	add(ended, event)
	unfit := translatetest.Running()
	unfit.Status.ContainerStatuses[1].ContainerID = "\x7fc-1"
	add(unfit, event)
	view := View{Node: "b", HostIP: netip.MustParseAddr("127.0.0.1"), Home: func(a netip.Addr) (netip.Addr, bool) { return a, a.Is4() }}
	f.Fuzz(func(t *testing.T, rawPod, rawEvent []byte, leaving bool) {
		begun := time.Now()
		var away corev1.Pod
		var e corev1.Event
		for raw, into := range map[*[]byte]any{&rawPod: &away, &rawEvent: &e} {
			if foreign.Body("", *raw) != nil || json.Unmarshal(*raw, into) != nil {
				return
			}
		}
		home := translatetest.Web()
		if leaving {
			home.DeletionTimestamp = &metav1.Time{Time: translatetest.Then.Time}
		}
		home.Status = Status(home, Away{Pod: &away}, view)
		if again := Status(home, Away{Pod: &away}, view); !equality.Semantic.DeepEqual(home.Status, again) {
			t.Fatalf("translated again it is another:\n%+v\n%+v", home.Status, again)
		}
		if err := foreign.Quantities(home.Status); err != nil {
			t.Fatal(err)
		}
		out := Event(&e, "lab-a", "lab", &away, "b")
		if len(out.Message) > maxEventMessage || out.Namespace != "lab" {
			t.Fatalf("%+v", out)
		}
		Current([]*corev1.Pod{&away, translatetest.Running()})
		if took := time.Since(begun); took > 5*time.Second {
			t.Fatalf("it took %v", took)
		}
	})
}
