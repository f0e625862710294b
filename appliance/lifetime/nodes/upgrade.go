package nodes

import (
	"encoding/base64"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httputil"
	"net/url"
	"os"
	"path/filepath"
	"strconv"
	"time"

	"rivulet/appliance/api"
	"rivulet/appliance/lifetime/upgrade"
	"rivulet/appliance/state/durable"
	"rivulet/appliance/state/paths"
	"rivulet/fabric"
	"rivulet/fabric/cure"
	"rivulet/fabric/peer"
)

// upgradePath is the route of a worker for upgrades by its server: PUT stages a release (an UpgradeQuery and the file),
// POST begins, GET returns the upgrade.State. The release is checked as by `rivulet upgrade`: the server's word is not
// enough.
const upgradePath = "/v1/node/upgrade"

// maxSignature bounds a signature, bytes; uploadLimit the time for a release.
const maxSignature, uploadLimit = 16 << 10, 30 * time.Minute

// UpgradeQuery is what goes before a release.
type UpgradeQuery struct {
	Signature     []byte // the content of FILE.sig
	Size          int64  // of the file, bytes
	Window, Every time.Duration
	Older         bool // as in upgrade.Request
}

// Path is the route for a node on its server.
func (q UpgradeQuery) Path(node string) string {
	v := url.Values{"sig": {base64.URLEncoding.EncodeToString(q.Signature)}, "size": {strconv.FormatInt(q.Size, 10)}, "window": {q.Window.String()}, "every": {q.Every.String()}, "older": {strconv.FormatBool(q.Older)}}
	return UpgradePath(node) + "?" + v.Encode()
}

// UpgradePath is the route on the server for a node's upgrade.
func UpgradePath(node string) string { return "/v1/nodes/" + url.PathEscape(node) + "/upgrade" }

func parseUpgrade(v url.Values) (q UpgradeQuery, err error) {
	var errs [4]error
	q.Signature, errs[0] = base64.URLEncoding.DecodeString(v.Get("sig"))
	q.Size, errs[1] = strconv.ParseInt(v.Get("size"), 10, 64)
	q.Window, errs[2] = time.ParseDuration(v.Get("window"))
	q.Every, errs[3] = time.ParseDuration(v.Get("every"))
	q.Older = v.Get("older") == "true"
	if errors.Join(errs[:]...) != nil || len(q.Signature) > maxSignature || q.Size < 0 || q.Size > upgrade.MaxRelease || q.Every < time.Second || q.Window < q.Every {
		return q, errors.New("the request is unreadable; run the same version of rivulet on both devices")
	}
	return q, nil
}

// offTrial returns an error while a version is on trial: if it is undone, the data of before come back, which are of what
// this device was then.
func offTrial() error {
	if !upgrade.OnTrial() {
		return nil
	}
	return cure.Errorf("a version of rivulet is tried here, and meanwhile this device stays what it is in its cluster; wait for the end, which rivulet upgrade shows, or undo that version now: sudo rivulet upgrade --cancel")
}

// serveUpgrades lets the server upgrade this worker.
func (d *Device) serveUpgrades(f *fabric.Fabric) {
	for method, do := range map[string]func(*http.Request) (any, error){
		http.MethodPut:  d.stage,
		http.MethodPost: func(r *http.Request) (any, error) { return d.Upgrade.Begin(r.Context(), true) },
		http.MethodGet:  func(*http.Request) (any, error) { return upgrade.Load(paths.Versions(d.State)) },
	} {
		answer := api.JSON(do)
		f.Handle(method+" "+upgradePath, d.forServer(func(w http.ResponseWriter, r *http.Request) {
			http.NewResponseController(w).SetReadDeadline(time.Now().Add(uploadLimit)) //nolint:errcheck // not every transport has one
			answer.ServeHTTP(w, r)
		}))
	}
}

// stage stores a release that the server sends, to be tried at the next start.
func (d *Device) stage(r *http.Request) (any, error) {
	q, err := parseUpgrade(r.URL.Query())
	if err != nil {
		return nil, err
	}
	if err := upgrade.Room(d.State, 3*q.Size); err != nil { // as received, as unpacked, and the running one
		return nil, err
	}
	dir := filepath.Join(paths.Versions(d.State), ".received")
	os.RemoveAll(dir) // of an upgrade that was cut off
	defer os.RemoveAll(dir)
	file := filepath.Join(dir, "rivulet")
	if err := errors.Join(os.MkdirAll(dir, 0o700), os.WriteFile(file+".sig", q.Signature, 0o600), receive(file, io.LimitReader(r.Body, q.Size))); err != nil {
		return nil, err
	}
	exe, err := os.Executable()
	if err != nil {
		return nil, err
	}
	build, err := upgrade.BuildID("/proc/self/exe")
	if err != nil {
		return nil, err
	}
	next, err := upgrade.Stage(r.Context(), upgrade.Request{
		State: d.State, File: file, Running: exe, RunningBuild: build, Window: q.Window, Every: q.Every, Peers: []string{string(d.Server)}, Older: q.Older, Now: time.Now().UTC(),
	})
	if err != nil {
		return nil, err
	}
	if !fits(d.Joined.Kubernetes, next.Kubernetes) {
		_, err := upgrade.Cancel(d.State, time.Now().UTC())
		return nil, errors.Join(cure.Errorf("%s has Kubernetes %s and the server %s; upgrade the server first", next.Name, next.Kubernetes, d.Joined.Kubernetes), err)
	}
	return next, nil
}

func receive(file string, from io.Reader) error {
	out, err := os.OpenFile(file, os.O_CREATE|os.O_EXCL|os.O_WRONLY, 0o600)
	if err != nil {
		return durable.Cure(err)
	}
	_, err = io.Copy(out, from)
	return durable.Cure(errors.Join(err, out.Close()))
}

// passUpgrade passes requests of this device's command line for a worker's upgrade.
func (d *Device) passUpgrade(w http.ResponseWriter, r *http.Request) {
	client, base, err := d.workerClient(r.PathValue("node"))
	if err != nil {
		api.JSON(func(*http.Request) (any, error) { return nil, err }).ServeHTTP(w, r)
		return
	}
	(&httputil.ReverseProxy{
		Transport: client.Transport,
		Rewrite: func(p *httputil.ProxyRequest) {
			p.SetURL(base)
			p.Out.URL.Path = upgradePath
		},
		ErrorHandler: func(w http.ResponseWriter, r *http.Request, err error) {
			err = fmt.Errorf("node %s does not answer: %w; see: rivulet nodes", r.PathValue("node"), err)
			api.JSON(func(*http.Request) (any, error) { return nil, err }).ServeHTTP(w, r)
		},
	}).ServeHTTP(w, r)
}

// workerClient is a client for the control port of a worker.
func (d *Device) workerClient(node string) (*http.Client, *url.URL, error) {
	f := d.Fabric()
	if err := d.onServer(); err != nil {
		return nil, nil, err
	}
	if f == nil {
		return nil, nil, errors.New("the tunnel has not started yet; see: rivulet status")
	}
	for _, r := range f.Nodes() {
		if r.Node != node || r.Trust.How != peer.TrustWorker {
			continue
		}
		client, base, err := f.Client(r.ID)
		if err != nil {
			return nil, nil, err
		}
		u, err := url.Parse(base)
		return client, u, err
	}
	return nil, nil, fmt.Errorf("no worker of this cluster is called %q; see: rivulet nodes", node)
}
