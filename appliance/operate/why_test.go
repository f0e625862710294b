package operate

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"

	"rivulet/appliance/api"
	"rivulet/appliance/diagnose/why"
	"rivulet/fabric/peer"
	"rivulet/offload/policy"
)

// What is meant is a pod, or of the kind that is written; a name that no pod has may be that of something else.
func TestWhatWhyIsAbout(t *testing.T) {
	in := func(ns string) metav1.ObjectMeta { return metav1.ObjectMeta{Namespace: ns, Name: "web"} }
	lists := map[string]any{ // all that the API server has
		"/apis/apps/v1/deployments":                &appsv1.DeploymentList{Items: []appsv1.Deployment{{ObjectMeta: in("lab")}, {ObjectMeta: in("shop")}}},
		"/apis/apps/v1/namespaces/lab/deployments": &appsv1.DeploymentList{Items: []appsv1.Deployment{{ObjectMeta: in("lab")}}},
		"/api/v1/namespaces/lab/pods?web-1":        &corev1.PodList{Items: []corev1.Pod{{ObjectMeta: metav1.ObjectMeta{Namespace: "lab", Name: "web-1"}}}},
		"/api/v1/pods?web-1":                       &corev1.PodList{Items: []corev1.Pod{{ObjectMeta: metav1.ObjectMeta{Namespace: "lab", Name: "web-1"}}}},
		"/api/v1/namespaces?lab":                   &corev1.NamespaceList{Items: []corev1.Namespace{{ObjectMeta: metav1.ObjectMeta{Name: "lab"}}}},
		"/api/v1/services?dns":                     &corev1.ServiceList{Items: []corev1.Service{{ObjectMeta: metav1.ObjectMeta{Namespace: "lab", Name: "dns"}}}},
	}
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Content-Type", "application/json")
		name := strings.TrimPrefix(r.URL.Query().Get("fieldSelector"), "metadata.name=")
		list, ok := lists[r.URL.Path+"?"+name]
		if !ok && name == "web" {
			list, ok = lists[r.URL.Path]
		}
		if !ok {
			list = struct{}{}
		}
		json.NewEncoder(w).Encode(list)
	}))
	defer server.Close()
	client, err := kubernetes.NewForConfig(&rest.Config{Host: server.URL})
	if err != nil {
		t.Fatal(err)
	}
	g := &gatherer{ctx: context.Background(), client: client, running: true,
		status: api.Status{Peers: []peer.View{{Record: peer.Record{Name: "lab-2", ID: "abcdefghijkl"}}}}}
	for _, c := range []struct{ namespace, arg, want string }{
		{"", "web-1", "*v1.Pod lab"}, {"lab", "web-1", "*v1.Pod lab"}, {"", "lab/web-1", "*v1.Pod lab"}, {"", "pod/web-1", "*v1.Pod lab"},
		{"lab", "deploy/web", "*v1.Deployment lab"}, {"lab", "Deployment/web", "*v1.Deployment lab"}, {"lab", "web", "*v1.Deployment lab"},
		{"", "deploy/web", "!rivulet why deployment/web -n lab"}, {"", "dns", "*v1.Service lab"}, {"", "ns/lab", "*v1.Namespace lab"}, {"", "lab", "*v1.Namespace lab"},
		{"", "peer/lab-2", "*peer.View "}, {"", "lab-2", "*peer.View "}, {"", "peer/none", "!rivulet peers"}, {"", "svc/none", "!there is no service none"}, {"", "none", "!rivulet pods"}, {"lab", "none", "!in namespace lab"}, {"", "lab/none", "!in namespace lab"},
	} {
		object, err := g.find(c.namespace, c.arg)
		if want, fails := strings.CutPrefix(c.want, "!"); fails {
			if err == nil || !strings.Contains(err.Error(), want) {
				t.Errorf("why %s: %v, want %q", c.arg, err, want)
			}
		} else if got := fmt.Sprintf("%T", object) + " " + why.NamespaceOf(object); err != nil || got != want {
			t.Errorf("why %s: %s, %v, want %s", c.arg, got, err, want)
		}
	}
	g.running = false
	if _, err := g.find("", "peer/lab-2"); err == nil {
		t.Error("peers without a supervisor")
	}
}

// A pod of a virtual cluster is found by the names that it has inside, and only there; the answer says whose it is.
func TestWhyOfAPodInAVirtualCluster(t *testing.T) {
	inside := func(ns, name string, origin peer.ID, made time.Time) *corev1.Pod {
		p := podOf(ns, name, "", corev1.PodPending, false)
		p.Labels, p.Annotations, p.CreationTimestamp = map[string]string{policy.OriginLabel: string(origin)}, map[string]string{policy.HomeNamespaceAnnotation: "default", policy.HomePodAnnotation: "web-0"}, metav1.NewTime(made)
		return p
	}
	now := time.Now()
	c := clusterOf(supervisor{status: api.Status{Name: "a", Status: students}}, &corev1.Namespace{ObjectMeta: object("", "twin", nil)},
		inside("twin", "old", "anna", now.Add(-time.Hour)), inside("twin", "new", "anna", now), inside("theirs", "theirs", b, now.Add(time.Hour)))
	a, err := c.Why(t.Context(), "", "db-anna/default/web-0", nil)
	if err != nil || a.Namespace != "twin" || a.Name != "new" || a.Origin != "anna (course db) default/web-0" || len(a.Reasons) == 0 {
		t.Errorf("%+v, %v", a, err)
	}
	for _, none := range []string{"db-anna/default/web-1", "b/default/web-0", "db-ben/default/web-0"} {
		if a, err := c.Why(t.Context(), "", none, nil); err == nil || !strings.Contains(err.Error(), "rivulet vcluster list") {
			t.Errorf("%s: %+v, %v", none, a, err)
		}
	}
}
