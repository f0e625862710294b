package rewrite

import (
	"encoding/json"
	"io"
	"net/http"
	"strings"
	"testing"
)

// answers is a campus that has one Service.
type answers struct{ name, labels string }

func (a answers) RoundTrip(req *http.Request) (*http.Response, error) {
	if req.URL.Path != "/api/v1/namespaces/shared/services/"+a.name {
		return refuse(req, http.StatusNotFound, "NotFound", "no "+req.URL.Path), nil
	}
	body := `{"kind":"Service","metadata":{"name":"` + a.name + `","namespace":"shared","labels":{` + a.labels + `}},"spec":{"clusterIP":"10.43.0.9"}}`
	return &http.Response{StatusCode: http.StatusOK, Header: http.Header{}, Request: req, Body: io.NopCloser(strings.NewReader(body))}, nil
}

func TestTheWayHomeIsSeenInEachNamespace(t *testing.T) {
	ask := func(a answers, method, path string) (int, string) {
		t.Helper()
		req, err := http.NewRequestWithContext(t.Context(), method, "http://campus/api/v1/namespaces/"+path, nil)
		if err != nil {
			t.Fatal(err)
		}
		resp, err := New(Config{Names: home, Namespace: "shared"}).Wrap(a).RoundTrip(req)
		if err != nil {
			t.Fatal(err)
		}
		raw, err := io.ReadAll(resp.Body)
		if err != nil {
			t.Fatal(err)
		}
		return resp.StatusCode, string(raw)
	}
	ours := answers{home.Away("default", "kubernetes"), `"` + HomeLabel + `":"` + home.Cluster + `"`}
	code, raw := ask(ours, http.MethodGet, "lab/services/rivulet-home-api")
	var s struct {
		Metadata struct{ Name, Namespace string }
		Spec     struct{ ClusterIP string }
	}
	if err := json.Unmarshal([]byte(raw), &s); err != nil || code != http.StatusOK || s.Metadata.Name != "rivulet-home-api" || s.Metadata.Namespace != "lab" || s.Spec.ClusterIP != "10.43.0.9" {
		t.Errorf("%d %s %v", code, raw, err)
	}
	if code, raw := ask(answers{ours.name, ""}, http.MethodGet, "lab/services/rivulet-home-api"); code != http.StatusNotFound {
		t.Errorf("somebody else's is shown: %d %s", code, raw)
	}
	for method, path := range map[string]string{
		http.MethodGet: "lab/services/web", http.MethodDelete: "lab/services/rivulet-home-api", http.MethodPut: "lab/services/rivulet-home-api", http.MethodPost: "lab/services",
	} {
		if code, raw := ask(ours, method, path); code != http.StatusForbidden {
			t.Errorf("%s %s: %d %s", method, path, code, raw)
		}
	}
}
