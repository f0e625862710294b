package resourcemetrics

import (
	"encoding/json"
	"errors"
	"mime"
	"net/http"
	"strings"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/metrics/pkg/apis/metrics/v1beta1"
)

const (
	group     = "metrics.k8s.io"
	version   = "v1beta1"
	base      = "/apis/" + group + "/" + version
	kindPods  = "pods"
	kindNodes = "nodes"
)

type handler struct{ *source }

func newHandler(s *source) http.Handler {
	h := handler{s}
	mux := http.NewServeMux()
	mux.HandleFunc("GET /apis", static(groups))
	mux.HandleFunc("GET /apis/"+group, static(apiGroup))
	mux.HandleFunc("GET "+base, static(resources))
	mux.HandleFunc("GET "+base+"/nodes", h.list(kindNodes))
	mux.HandleFunc("GET "+base+"/nodes/{name}", h.get(kindNodes))
	mux.HandleFunc("GET "+base+"/pods", h.list(kindPods))
	mux.HandleFunc("GET "+base+"/namespaces/{namespace}/pods", h.list(kindPods))
	mux.HandleFunc("GET "+base+"/namespaces/{namespace}/pods/{name}", h.get(kindPods))
	// The API server requests these to describe the whole API. They are empty, but without an answer it would repeat
	// the request, and log an error, for ever.
	mux.HandleFunc("GET /openapi/v2", static(json.RawMessage(`{"swagger":"2.0","info":{"title":"resource metrics","version":"v1beta1"},"paths":{}}`)))
	mux.HandleFunc("GET /openapi/v3", static(json.RawMessage(`{"paths":{}}`)))
	for _, path := range []string{"/healthz", "/livez", "/readyz"} {
		mux.HandleFunc("GET "+path, func(w http.ResponseWriter, _ *http.Request) { _, _ = w.Write([]byte("ok")) })
	}
	mux.HandleFunc("/", func(w http.ResponseWriter, r *http.Request) {
		if r.Method != http.MethodGet && r.Method != http.MethodHead && strings.HasPrefix(r.URL.Path, base) {
			fail(w, apierrors.NewMethodNotSupported(schema.GroupResource{Group: group}, strings.ToLower(r.Method)))
			return
		}
		fail(w, apierrors.NewGenericServerResponse(http.StatusNotFound, "get", schema.GroupResource{}, "", "there is nothing at "+r.URL.Path, 0, true))
	})
	return mux
}

func static(v any) http.HandlerFunc {
	return func(w http.ResponseWriter, _ *http.Request) { write(w, http.StatusOK, v) }
}

func (h handler) list(kind string) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		q := r.URL.Query()
		if on := q.Get("watch"); on != "" && on != "false" && on != "0" {
			fail(w, apierrors.NewMethodNotSupported(resourceOf(kind), "watch"))
			return
		}
		options := metav1.ListOptions{LabelSelector: q.Get("labelSelector"), FieldSelector: q.Get("fieldSelector")}
		h.answer(w, r, kind, options, false)
	}
}

func (h handler) get(kind string) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		h.answer(w, r, kind, metav1.ListOptions{FieldSelector: "metadata.name=" + r.PathValue("name")}, true)
	}
}

// answer writes what is selected and measured: one object, or a list.
func (h handler) answer(w http.ResponseWriter, r *http.Request, kind string, o metav1.ListOptions, one bool) {
	form, ok := negotiate(r.Header.Values("Accept"))
	if !ok {
		fail(w, apierrors.NewGenericServerResponse(http.StatusNotAcceptable, "get", resourceOf(kind), "", "only JSON and tables in JSON are offered", 0, true))
		return
	}
	var out answer
	var err error
	if kind == kindNodes {
		out, err = h.nodes(r.Context(), o)
	} else {
		out, err = h.pods(r.Context(), r.PathValue("namespace"), o)
	}
	switch {
	case err != nil:
		fail(w, err)
	case one && len(out.objects) == 0:
		fail(w, apierrors.NewNotFound(resourceOf(kind), r.PathValue("name")))
	case form == asTable:
		write(w, http.StatusOK, &out.table)
	case one:
		write(w, http.StatusOK, out.objects[0])
	default:
		write(w, http.StatusOK, out.list)
	}
}

func resourceOf(kind string) schema.GroupResource { return v1beta1.Resource(kind) }

type form int

const (
	asJSON form = iota
	asTable
)

// negotiate returns the first accepted form that is supported.
func negotiate(accept []string) (form, bool) {
	all := strings.Join(accept, ",")
	if strings.TrimSpace(all) == "" {
		return asJSON, true
	}
	for part := range strings.SplitSeq(all, ",") {
		media, params, err := mime.ParseMediaType(part)
		if err != nil || media != "application/json" && media != "application/*" && media != "*/*" {
			continue
		}
		switch params["as"] {
		case "":
			return asJSON, true
		case "Table":
			if params["g"] == metav1.GroupName && (params["v"] == "v1" || params["v"] == "v1beta1") {
				return asTable, true
			}
		}
	}
	return 0, false
}

func fail(w http.ResponseWriter, err error) {
	var known apierrors.APIStatus
	if !errors.As(err, &known) {
		known = apierrors.NewInternalError(err)
	}
	status := known.Status()
	status.TypeMeta = metav1.TypeMeta{APIVersion: "v1", Kind: "Status"}
	code := int(status.Code)
	if code == 0 {
		code = http.StatusInternalServerError
	}
	write(w, code, status)
}

func write(w http.ResponseWriter, code int, v any) {
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(code)
	_ = json.NewEncoder(w).Encode(v)
}
