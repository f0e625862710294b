package rewrite

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"regexp"
	"slices"
	"strconv"
	"strings"

	"rivulet/offload/foreign"
	"rivulet/offload/homeapi"
)

const (
	pods   = "pods"
	events = "events"
)

// resources are the supported ones, with their verbs.
var resources = map[string]struct{ group, verbs string }{
	pods:          {"/api/v1", "GET PATCH DELETE"},
	events:        {"/api/v1", "GET"},
	"configmaps":  {"/api/v1", "GET POST PUT DELETE"},
	"secrets":     {"/api/v1", "GET POST PUT DELETE"},
	"replicasets": {"/apis/apps/v1", "GET POST PUT DELETE"},
	"jobs":        {"/apis/batch/v1", "GET POST PUT DELETE"},
}

// metricsGroup has resource metrics, whose resource is also called pods.
const metricsGroup = "/apis/metrics.k8s.io/v1beta1"

// Config are the parameters of a Transport. Namespace, Names and Base are required.
type Config struct {
	Names
	Namespace string // the shared one
	// Prefix is the path before /api, if any, without a slash at the end.
	Prefix string
	// Prepare, if set, completes the template of a new ReplicaSet or Job of the home namespace, as a JSON object, for
	// the rules of the shared namespace. The text of an error is the answer.
	Prepare func(home string, template map[string]any) error
}

// Transport translates requests and answers.
type Transport struct {
	cfg  Config
	path *regexp.Regexp
}

// New makes a Transport.
func New(cfg Config) *Transport {
	return &Transport{cfg: cfg, path: regexp.MustCompile(`^` + regexp.QuoteMeta(cfg.Prefix) + `(/api/v1|/apis/[^/]+/[^/]+)/namespaces/([^/]+)/([^/]+)(?:/([^/]+)(?:/(.+))?)?$`)}
}

// Wrap puts the Transport in front of a connection, for rest.Config.Wrap.
func (l *Transport) Wrap(rt http.RoundTripper) http.RoundTripper { return &tripper{l, rt} }

type tripper struct {
	transport *Transport
	base      http.RoundTripper
}

// call is one request.
type call struct {
	space
	*http.Request
	group, resource, object, sub string
	base                         http.RoundTripper
	metrics                      bool // pods are those of the resource metrics API
	foreign                      bool // the object found is another's
}

// RoundTrip implements http.RoundTripper.
func (t *tripper) RoundTrip(req *http.Request) (*http.Response, error) {
	l := t.transport
	found := l.path.FindStringSubmatch(req.URL.Path)
	if found == nil {
		if req.Method == http.MethodGet && !strings.Contains(req.URL.Path, "/namespaces/") && !strings.HasPrefix(req.URL.Path, l.cfg.Prefix+"/api/v1/") {
			return t.base.RoundTrip(req) // versions, discovery
		}
		return refuse(req, http.StatusForbidden, "Forbidden", fmt.Sprintf("%s %s is not within a namespace, and only what is within the shared one is passed on", req.Method, req.URL.Path)), nil
	}
	metrics := found[1] == metricsGroup && found[3] == pods && req.Method == http.MethodGet
	c := &call{space: space{names: l.cfg.Names, home: found[2], shared: l.cfg.Namespace}, Request: req.Clone(req.Context()),
		group: found[1], resource: found[3], object: found[4], sub: found[5], base: t.base, metrics: metrics}
	if c.group == "/api/v1" && c.resource == "services" && c.object == homeapi.Service && c.sub == "" && req.Method == http.MethodGet {
		return c.wayHome(l.cfg.Prefix)
	}
	kind, known := resources[c.resource]
	if !metrics && (!known || kind.group != c.group || c.sub == "" && !slices.Contains(strings.Fields(kind.verbs), req.Method) || c.sub != "" && c.resource != pods) {
		return refuse(req, http.StatusForbidden, "Forbidden", fmt.Sprintf("%s of %s is not passed on to a shared namespace", req.Method, c.resource)), nil
	}
	c.point(l.cfg.Prefix)
	switch {
	case c.sub != "" && req.Method != http.MethodPatch: // log, exec, attach, portforward: only the path is translated
		return t.base.RoundTrip(c.Request)
	case req.Method == http.MethodGet && c.object == "":
		return c.list()
	case req.Method == http.MethodGet:
		return c.get()
	case req.Method == http.MethodDelete && c.object == "", req.Method == http.MethodPost && c.object != "":
		return refuse(req, http.StatusForbidden, "Forbidden", "objects in a shared namespace are deleted one by one"), nil
	case req.Method == http.MethodDelete:
		return c.remove()
	case req.Method == http.MethodPatch:
		return c.change()
	default:
		return c.write(l.cfg.Prepare)
	}
}

// point sets the path in the shared namespace.
func (c *call) point(prefix string) {
	path := prefix + c.group + "/namespaces/" + c.shared + "/" + c.resource
	if c.object != "" {
		name := c.object
		if c.resource != pods && c.resource != events {
			name = c.name(name)
		}
		path += "/" + name
		if c.sub != "" {
			path += "/" + c.sub
		}
	}
	u := *c.URL
	u.Path, u.RawPath = path, ""
	c.URL = &u
}

// list restricts a list or a watch to this cluster's objects.
func (c *call) list() (*http.Response, error) {
	query := c.URL.Query()
	if c.resource != events {
		ours := HomeLabel + "=" + c.names.Cluster + "," + SpaceLabel + "=" + c.names.Space(c.home)
		if more := query.Get("labelSelector"); more != "" {
			ours += "," + more
		}
		query.Set("labelSelector", ours)
	}
	if field := query.Get("fieldSelector"); field != "" && c.resource != pods && c.resource != events {
		if name, ok := strings.CutPrefix(field, "metadata.name="); ok {
			query.Set("fieldSelector", "metadata.name="+c.name(name))
		}
	}
	c.URL.RawQuery = query.Encode()
	c.Header.Set("Accept", "application/json")
	resp, err := c.base.RoundTrip(c.Request)
	if err != nil || resp.StatusCode != http.StatusOK {
		return resp, err
	}
	if w := query.Get("watch"); w == "true" || w == "1" {
		return c.stream(resp), nil
	}
	o, err := decode(resp)
	if err != nil {
		return nil, err
	}
	kept := []any{}
	each(o, "items", func(item tree) {
		if c.show(item) {
			kept = append(kept, item)
		}
	})
	o["items"] = kept
	return answer(resp, o)
}

// show translates a read object, and reports whether it is visible.
func (c *call) show(o tree) bool {
	switch {
	case c.resource == events:
		return c.event(o)
	case c.metrics:
		return c.measured(o)
	case !c.mine(c.resource, o):
		return false
	}
	c.back(c.resource, o)
	return true
}

// get returns an object if it is this cluster's.
func (c *call) get() (*http.Response, error) {
	o, resp, err := c.read(c.Request)
	if o == nil {
		return resp, err
	}
	if !c.show(o) {
		return c.notOurs(), nil
	}
	return answer(resp, o)
}

// read returns the object in the answer to a request; nil without one, and then the answer to return.
func (c *call) read(req *http.Request) (tree, *http.Response, error) {
	req.Header.Set("Accept", "application/json")
	resp, err := c.base.RoundTrip(req)
	if err != nil || resp.StatusCode != http.StatusOK {
		return nil, resp, err
	}
	o, err := decode(resp)
	if err != nil {
		return nil, nil, err
	}
	if o == nil { // null
		o = tree{}
	}
	return o, resp, nil
}

func (c *call) notOurs() *http.Response {
	return refuse(c.Request, http.StatusNotFound, "NotFound", fmt.Sprintf("%s %q is not ours", c.resource, c.object))
}

// find reads the object of the call; nil if it does not exist or is another's, and then the answer to return.
func (c *call) find() (tree, *http.Response, error) {
	req, err := http.NewRequestWithContext(c.Context(), http.MethodGet, c.objectURL(), nil)
	if err != nil {
		return nil, nil, err
	}
	req.Header = c.Header.Clone()
	req.Header.Del("Content-Type")
	o, resp, err := c.read(req)
	if o == nil {
		return nil, resp, err
	}
	if !c.mine(c.resource, o) {
		c.foreign = true
		return nil, c.notOurs(), nil
	}
	return o, nil, nil
}

// objectURL is that of the object itself, without sub-resource and query.
func (c *call) objectURL() string {
	u := *c.URL
	u.RawQuery = ""
	if c.sub != "" {
		u.Path = strings.TrimSuffix(u.Path, "/"+c.sub)
	}
	return u.String()
}

// remove deletes exactly the object that was read, unless the request has its own precondition.
func (c *call) remove() (*http.Response, error) {
	o, err := c.body()
	if err != nil {
		return nil, err
	}
	if text(at(o, "preconditions"), "uid") == "" {
		have, denied, err := c.find()
		if have == nil {
			return denied, err
		}
		need(o, "preconditions")["uid"] = text(at(have, "metadata"), "uid")
	}
	if text(o, "kind") == "" {
		o["kind"], o["apiVersion"] = "DeleteOptions", "v1"
	}
	resp, err := c.send(o)
	return c.shown(resp, err)
}

// change patches a pod, if it is this cluster's.
func (c *call) change() (*http.Response, error) {
	o, err := c.body()
	if err != nil {
		return nil, err
	}
	have, denied, err := c.find()
	if have == nil {
		return denied, err
	}
	if err := c.patch(o); err != nil {
		return refuse(c.Request, http.StatusUnprocessableEntity, "Invalid", err.Error()), nil
	}
	if changed := at(o, "metadata", "labels"); changed != nil {
		c.back(c.resource, have)
		labels := need(have, "metadata", "labels")
		for key, value := range changed {
			home, _ := HomeKey(key)
			if labels[home] = value; value == nil {
				delete(labels, home)
			}
		}
		need(o, "metadata", "annotations")[labelsAnnotation] = asFile(labels)
	}
	resp, err := c.send(o)
	return c.shown(resp, err)
}

// write creates or replaces an object.
func (c *call) write(prepare func(string, map[string]any) error) (*http.Response, error) {
	o, err := c.body()
	if err != nil {
		return nil, err
	}
	fresh := c.Method == http.MethodPost
	if fresh && c.resource != pods && text(at(o, "metadata"), "name") == "" {
		return refuse(c.Request, http.StatusUnprocessableEntity, "Invalid", "an object without a name is not translated"), nil
	}
	if !fresh && text(at(o, "metadata"), "resourceVersion") == "" {
		if have, denied, err := c.find(); have == nil {
			return denied, err
		}
	}
	c.away(c.resource, o, fresh)
	if wraps(c.resource) && prepare != nil {
		if err := prepare(c.home, need(o, "spec", "template")); err != nil {
			return refuse(c.Request, http.StatusUnprocessableEntity, "Invalid", err.Error()), nil
		}
	}
	name := text(at(o, "metadata"), "name")
	resp, err := c.send(o)
	if err == nil && fresh && resp.StatusCode == http.StatusConflict {
		return c.taken(resp, name)
	}
	return c.shown(resp, err)
}

// taken returns the refusal for a name that another's object has.
func (c *call) taken(resp *http.Response, name string) (*http.Response, error) {
	c.object = name
	u := *c.URL
	u.Path += "/" + name
	c.URL = &u
	_, denied, err := c.find()
	switch {
	case err != nil:
		return nil, err
	case c.foreign:
		drain(resp)
		return refuse(c.Request, http.StatusUnprocessableEntity, "Invalid", fmt.Sprintf(
			"namespace %s has %s %q already, which Rivulet did not make and does not touch; rename or delete it there", c.shared, c.resource, name)), nil
	}
	if denied != nil {
		drain(denied)
	}
	return resp, nil
}

// shown translates the object in the answer to a write.
func (c *call) shown(resp *http.Response, err error) (*http.Response, error) {
	if err != nil || resp.StatusCode/100 != 2 {
		return resp, err
	}
	o, err := decode(resp)
	if err != nil {
		return nil, err
	}
	if text(o, "kind") != "Status" && !c.show(o) {
		return refuse(c.Request, http.StatusInternalServerError, "InternalError",
			"the campus changed the labels or annotations by which Rivulet knows its objects; an admission webhook there must leave rivulet.dev/* alone"), nil
	}
	return answer(resp, o)
}

// body reads the request's body; an empty one is an empty object.
func (c *call) body() (tree, error) {
	if c.Body == nil {
		return tree{}, nil
	}
	defer c.Body.Close()
	raw, err := io.ReadAll(io.LimitReader(c.Body, foreign.MaxAnswer))
	if err != nil || len(bytes.TrimSpace(raw)) == 0 {
		return tree{}, err
	}
	return parse(raw)
}

func (c *call) send(o tree) (*http.Response, error) {
	raw, err := json.Marshal(o)
	if err != nil {
		return nil, err
	}
	c.Body, c.ContentLength = io.NopCloser(bytes.NewReader(raw)), int64(len(raw))
	c.GetBody = func() (io.ReadCloser, error) { return io.NopCloser(bytes.NewReader(raw)), nil }
	if !strings.Contains(c.Header.Get("Content-Type"), "json") {
		c.Header.Set("Content-Type", "application/json")
	}
	c.Header.Set("Accept", "application/json")
	c.Header.Del("Content-Length")
	return c.base.RoundTrip(c.Request)
}

func parse(raw []byte) (tree, error) {
	d := json.NewDecoder(bytes.NewReader(raw))
	d.UseNumber() // int64 does not fit into a float
	var o tree
	if err := d.Decode(&o); err != nil {
		return nil, fmt.Errorf("burst: not understood: %w", err)
	}
	return o, nil
}

func decode(resp *http.Response) (tree, error) {
	defer resp.Body.Close()
	raw, err := io.ReadAll(io.LimitReader(resp.Body, foreign.MaxAnswer+1))
	if err != nil {
		return nil, err
	}
	return parse(raw)
}

// drain makes the connection reusable.
func drain(resp *http.Response) {
	_, _ = io.Copy(io.Discard, io.LimitReader(resp.Body, 1<<20))
	resp.Body.Close()
}

// answer replaces the body of the response.
func answer(resp *http.Response, o tree) (*http.Response, error) {
	raw, err := json.Marshal(o)
	if err != nil {
		return nil, err
	}
	out := *resp
	out.Header = resp.Header.Clone()
	out.Header.Set("Content-Type", "application/json")
	out.Header.Set("Content-Length", strconv.Itoa(len(raw)))
	out.Body, out.ContentLength = io.NopCloser(bytes.NewReader(raw)), int64(len(raw))
	return &out, nil
}

// refuse answers in place of the campus.
func refuse(req *http.Request, code int, reason, message string) *http.Response {
	if req.Body != nil {
		req.Body.Close()
	}
	raw, _ := json.Marshal(tree{"kind": "Status", "apiVersion": "v1", "metadata": tree{}, "status": "Failure", // a literal
		"code": code, "reason": reason, "message": "burst: " + message})
	return &http.Response{StatusCode: code, Status: strconv.Itoa(code) + " " + http.StatusText(code), Proto: "HTTP/1.1", ProtoMajor: 1, ProtoMinor: 1,
		Header: http.Header{"Content-Type": {"application/json"}}, Request: req, Body: io.NopCloser(bytes.NewReader(raw)), ContentLength: int64(len(raw))}
}
