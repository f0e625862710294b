package peer

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"strconv"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes/scheme"

	"rivulet/fabric/peer"
	"rivulet/fabric/rpc"
)

// A peer's texts of failures are shown in events, conditions and on terminals here. They are sanitized on arrival, and
// only there.

// cures are this cluster's own for refusals of package tenancy; the peer's advice is not passed on.
var cures = map[string]string{
	"in-use":               "stop the pod first",
	"holds-data":           "move the data (rivulet move volume NAMESPACE/CLAIM home), or delete the claims",
	"no-room":              "free space there, or choose another cluster",
	"no-claim":             "see: kubectl get pvc",
	"no-twin":              "offload the namespace first",
	"no-volumes":           "move the data in a pod",
	"not-a-folder":         "move the data in a pod",
	"too-many-requests":    "try again in a moment",
	"too-many-twins":       "give some back: rivulet unoffload NS",
	"not-lent":             "ask its owner: rivulet peer NAME --provide=on",
	"provider-unavailable": "try again; there: rivulet status",
	"bad-size":             "upgrade both clusters to the same version",
}

// refusal is the answer of a failed request.
func refusal(status int, body []byte) error {
	var said rpc.Error
	if json.Unmarshal(body, &said) == nil && said.Code != "" {
		e := rpc.Received(said)
		e.Cure = cures[e.Code]
		return e
	}
	text := peer.Text(string(body))
	if text == "" {
		return fmt.Errorf("the peer answers %d %s", status, http.StatusText(status))
	}
	return fmt.Errorf("the peer answers %d %s: %s", status, http.StatusText(status), text)
}

// decode parses an answer of the peer.
func decode(raw []byte, out any) error {
	if err := json.Unmarshal(raw, out); err != nil {
		return err
	}
	peer.Clean(out, peer.Text)
	return nil
}

// fit sanitizes the texts in refusals of the Kubernetes API.
type fit struct{ http.RoundTripper }

// WrappedRoundTripper gives access to idle connections.
func (f fit) WrappedRoundTripper() http.RoundTripper { return f.RoundTripper }

func (f fit) RoundTrip(r *http.Request) (*http.Response, error) {
	resp, err := f.RoundTripper.RoundTrip(r)
	if err != nil || resp.StatusCode < http.StatusBadRequest {
		return resp, err
	}
	raw, err := io.ReadAll(io.LimitReader(resp.Body, maxAnswer))
	resp.Body.Close()
	if err != nil {
		return nil, err
	}
	obj, _, err := scheme.Codecs.UniversalDeserializer().Decode(raw, nil, nil) // no Status without a kind: "word: text" is YAML
	status, ok := obj.(*metav1.Status)
	if err == nil && ok {
		peer.Clean(status, peer.Prose)
		status.TypeMeta = metav1.TypeMeta{Kind: "Status", APIVersion: "v1"}
		raw, err = json.Marshal(status)
		resp.Header.Set("Content-Type", "application/json")
	}
	if err != nil || !ok {
		raw = []byte(peer.Prose(string(raw)))
		resp.Header.Set("Content-Type", "text/plain")
	}
	resp.Header.Set("Content-Length", strconv.Itoa(len(raw)))
	resp.ContentLength, resp.Body = int64(len(raw)), io.NopCloser(bytes.NewReader(raw))
	return resp, nil
}
