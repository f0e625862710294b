package stream

import (
	"encoding/json"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"net/url"
	"strings"
	"sync/atomic"
	"testing"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/remotecommand"

	"rivulet/offload/consumer/pod"
)

// A refusal reaches the user whole and with home's names, of an exec as of logs, whoever
// refuses. A pod of which the target has not told yet is waited for.
func TestRefusals(t *testing.T) {
	target := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if strings.Contains(r.URL.Path, "/plain-x1/") {
			http.Error(w, "kubelet: no such container", http.StatusNotFound)
			return
		}
		st := apierrors.NewBadRequest(`container "main" in pod "web-x1" of lab-a is waiting to start`).Status()
		st.Kind, st.APIVersion = "Status", "v1"
		w.Header().Set("Content-Type", "application/json")
		w.WriteHeader(int(st.Code))
		_ = json.NewEncoder(w).Encode(st)
	}))
	defer target.Close()
	var asked atomic.Int32
	s, err := Listen(Config{Home: reviewer(t), IP: netip.MustParseAddr("127.0.0.1"), Target: &rest.Config{Host: target.URL}, Node: "b", Log: slog.New(slog.DiscardHandler),
		Pods: pods{away: func(name string) (string, string, error) {
			switch {
			case name == "gone":
				return "", "", apierrors.NewNotFound(corev1.Resource("pods"), name)
			case name == "young":
				return "", "", apierrors.NewServiceUnavailable("offload: pod young has not started on b yet")
			case name == "web" && asked.Add(1) < 3:
				return "", "", pod.ErrNotKnown
			}
			return "lab-a", name + "-x1", nil
		}}})
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	node := httptest.NewServer(s.routes())
	defer node.Close()
	for name, want := range map[string]struct {
		code int
		text string
	}{
		"web":   {http.StatusBadRequest, `container "main" in pod "web" of lab is waiting to start`},
		"plain": {http.StatusNotFound, "kubelet: no such container"},
		"young": {http.StatusServiceUnavailable, "offload: pod young has not started on b yet"},
		"gone":  {http.StatusNotFound, `pods "gone" not found`},
	} {
		asked.Store(0)
		resp, err := http.Get(node.URL + "/containerLogs/lab/" + name + "/main")
		if err != nil {
			t.Fatal(err)
		}
		body, err := io.ReadAll(resp.Body)
		resp.Body.Close()
		if err != nil || resp.StatusCode != want.code || strings.TrimSpace(string(body)) != want.text {
			t.Errorf("logs of %s: %d %q %v", name, resp.StatusCode, body, err)
		}
		asked.Store(0)
		at, err := url.Parse(node.URL + "/exec/lab/" + name + "/main?output=1&command=ls")
		if err != nil {
			t.Fatal(err)
		}
		e, err := remotecommand.NewSPDYExecutor(&rest.Config{Host: node.URL}, "POST", at)
		if err != nil {
			t.Fatal(err)
		}
		err = e.StreamWithContext(t.Context(), remotecommand.StreamOptions{Stdout: io.Discard})
		told, ok := err.(apierrors.APIStatus)
		if !ok || int(told.Status().Code) != want.code || told.Status().Status != "Failure" || strings.TrimSpace(told.Status().Message) != want.text {
			t.Errorf("exec in %s: %v", name, err)
		}
	}
}
