package gatewaypod

import (
	"context"
	"fmt"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
)

// TestWhomTheGatewayRunsAs: the pod is within the ranges of a namespace of OpenShift, says
// nobody where it is for the cluster to say, and is the same as ever elsewhere.
func TestWhomTheGatewayRunsAs(t *testing.T) {
	forbidden := `{"kind":"Status","apiVersion":"v1","status":"Failure","reason":"Forbidden","code":403}`
	groups := `{"kind":"APIGroupList","apiVersion":"v1","groups":[{"name":%q,"versions":[{"groupVersion":"x/v1","version":"v1"}],"preferredVersion":{"groupVersion":"x/v1","version":"v1"}}]}`
	annotated := func(list string) string {
		return `{"kind":"Namespace","apiVersion":"v1","metadata":{"name":"student42","annotations":{` + list + `}}}`
	}
	for what, tc := range map[string]struct {
		namespace, groups string
		want              string // user, group, group of files; empty: an error
	}{
		"plain":                 {annotated(""), "", "65532 65532 65532"},
		"a range":               {annotated(`"openshift.io/sa.scc.uid-range":"1000680000/10000","openshift.io/sa.scc.supplemental-groups":"1000690000/10000"`), "", "1000680000 1000690000 1000690000"},
		"a range with a dash":   {annotated(`"openshift.io/sa.scc.uid-range":"1000680000-1000690000,5-6"`), "", "1000680000 1000680000 1000680000"},
		"a range of root":       {annotated(`"openshift.io/sa.scc.uid-range":"0/10000"`), "", "65532 65532 65532"},
		"no range":              {annotated(`"openshift.io/sa.scc.uid-range":"many"`), "", "65532 65532 65532"},
		"not read":              {forbidden, fmt.Sprintf(groups, "apps"), "65532 65532 65532"},
		"not read at OpenShift": {forbidden, fmt.Sprintf(groups, "security.openshift.io"), "nil nil nil"},
		"no answer":             {`{"kind":"Status","apiVersion":"v1","status":"Failure","reason":"ServiceUnavailable","code":503}`, "", ""},
	} {
		t.Run(what, func(t *testing.T) {
			server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
				w.Header().Set("Content-Type", "application/json")
				body := tc.namespace
				if r.URL.Path == "/apis" {
					body = tc.groups
				} else if r.URL.Path == "/api" {
					body = `{"kind":"APIVersions","versions":["v1"]}`
				}
				switch {
				case strings.Contains(body, `"code":403`):
					w.WriteHeader(http.StatusForbidden)
				case strings.Contains(body, `"code":503`):
					w.WriteHeader(http.StatusServiceUnavailable)
				}
				_, _ = w.Write([]byte(body)) // the asker has gone
			}))
			defer server.Close()
			client, err := kubernetes.NewForConfig(&rest.Config{Host: server.URL})
			if err != nil {
				t.Fatal(err)
			}
			g := &Gateway{campus: client, name: "gateway", cfg: Config{Namespace: "student42", Labels: map[string]string{"a": "b"}, Shell: DefaultShell}}
			who, err := g.identity(context.Background())
			if tc.want == "" {
				if err == nil {
					t.Errorf("no error, but %+v", who)
				}
				return
			}
			if err != nil {
				t.Fatal(err)
			}
			d := g.deployment(who)
			c := d.Spec.Template.Spec.SecurityContext
			show := func(n *int64) string {
				if n == nil {
					return "nil"
				}
				return fmt.Sprint(*n)
			}
			if got := show(c.RunAsUser) + " " + show(c.RunAsGroup) + " " + show(c.FSGroup); got != tc.want || !*c.RunAsNonRoot || c.SeccompProfile == nil {
				t.Errorf("%s, want %s", got, tc.want)
			}
			if own := d.Spec.Template.Spec.Containers[0].SecurityContext; own.RunAsUser != nil || !*own.RunAsNonRoot {
				t.Errorf("the container says %+v", own)
			}
			if g.deployment(who).Annotations[sumAnnotation] != d.Annotations[sumAnnotation] || tc.want != "65532 65532 65532" && g.deployment(identityIn(nil)).Annotations[sumAnnotation] == d.Annotations[sumAnnotation] {
				t.Error("another user has to be another Deployment, and the same one the same")
			}
		})
	}
}
