package stream

import (
	"bytes"
	"encoding/json"
	"io"
	"net/http"
	"strconv"
	"strings"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes/scheme"
)

// mostRefusal bounds the part of a target's refusal that is read, in bytes.
const mostRefusal = 64 << 10

// refusal is the body of a refusing answer. For a plain request home's API server shows its text unchanged. For an
// upgrade it parses the body as a Status, whatever it is: "word: text" is valid YAML, and the user would only see
// "unknown error" (apimachinery, pkg/util/httpstream/spdy, NewConnection).
func refusal(upgrade bool, st metav1.Status) (mime string, body []byte) {
	if !upgrade {
		return "text/plain; charset=utf-8", []byte(st.Message)
	}
	st.TypeMeta, st.Status = metav1.TypeMeta{Kind: "Status", APIVersion: "v1"}, metav1.StatusFailure
	body, _ = json.Marshal(st) // a Status always marshals
	return "application/json", body
}

func refuse(w http.ResponseWriter, upgrade bool, st metav1.Status) {
	mime, body := refusal(upgrade, st)
	w.Header().Set("Content-Type", mime)
	w.WriteHeader(int(st.Code))
	_, _ = w.Write(body) // the client is gone
}

// asKubelet turns a refusal of the target's API into a kubelet's, with home's names.
func asKubelet(resp *http.Response, upgrade bool, names *strings.Replacer) error {
	raw, err := io.ReadAll(io.LimitReader(resp.Body, mostRefusal))
	resp.Body.Close()
	if err != nil {
		return err
	}
	st := metav1.Status{Message: string(raw)}
	if obj, _, err := scheme.Codecs.UniversalDeserializer().Decode(raw, nil, nil); err == nil {
		if told, ok := obj.(*metav1.Status); ok {
			st = *told
		}
	}
	st.Code, st.Message = int32(resp.StatusCode), names.Replace(st.Message)
	mime, body := refusal(upgrade, st)
	resp.Header.Set("Content-Type", mime)
	resp.Header.Set("Content-Length", strconv.Itoa(len(body)))
	resp.ContentLength, resp.Body = int64(len(body)), io.NopCloser(bytes.NewReader(body))
	return nil
}
