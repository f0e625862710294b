package tenantimages

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/netip"
	"net/url"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/containerd/containerd/v2/core/remotes/docker"

	"rivulet/fabric/httpserver"
)

// tokenUser is the user name of a login by an identity token in place of a password.
const tokenUser = "<token>"

// RelayConfig are the dependencies of a Relay.
type RelayConfig struct {
	// Registries are the owner's settings, in k3s's form; read for each request.
	Registries func() string
	// Withheld are the hosts from which nothing is pulled for tenants, "*" for all.
	Withheld func() []string
	// Networks are this device's own, which count as private.
	Networks func() []netip.Prefix
	// Proxy returns the proxy for a request, nil for none; a nil Proxy uses the environment.
	Proxy func(*http.Request) (*url.URL, error)
	// Home returns the client for the home of a consumer, by its Tag; false while there is no way, or it is disabled.
	// Nil uses no home.
	Home func(tag string) (client *http.Client, base string, ok bool)
	// Server returns, on a worker, the client for images of this cluster's own that its server has, and the URL below
	// which they are; false while there is no way. Nil uses no server.
	Server func() (client *http.Client, at string, ok bool)
	// Folder is where containerd reads its configuration of registries.
	Folder string
}

// Relay pulls tenants' images for containerd. It connects to public addresses only, whatever a name or a redirect leads
// to, and to the endpoints that the owner has configured for a registry. A proxy gets addresses, not names: see
// dialPublic.
type Relay struct {
	cfg    RelayConfig
	secret string
	public *http.Transport
	lookup func(ctx context.Context, network, host string) ([]netip.Addr, error)

	mu    sync.Mutex
	known map[string]docker.Authorizer // by endpoint, repository and login
	gave  map[string]bool              // images of which homes have served a part
}

// NewRelay returns a relay that does not listen yet.
func NewRelay(cfg RelayConfig) *Relay {
	if cfg.Proxy == nil {
		cfg.Proxy = http.ProxyFromEnvironment
	}
	r := &Relay{cfg: cfg, secret: rand.Text(), lookup: net.DefaultResolver.LookupNetIP, known: map[string]docker.Authorizer{}}
	r.public = transport(r.dialPublic)
	r.public.Proxy = nil // dialPublic uses it
	return r
}

// Serve answers on a loopback address until ctx ends, and configures containerd for it.
func (r *Relay) Serve(ctx context.Context, ready func()) error {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return fmt.Errorf("images: %w", err)
	}
	defer l.Close()
	dir := filepath.Join(r.cfg.Folder, Registry)
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return fmt.Errorf("images: %w", err)
	}
	hosts := fmt.Sprintf("server = \"http://%s/%s\"\ncapabilities = [\"pull\", \"resolve\"]\noverride_path = true\n", l.Addr(), r.secret)
	if err := os.WriteFile(filepath.Join(dir, "hosts.toml"), []byte(hosts), 0o600); err != nil {
		return fmt.Errorf("images: %w", err)
	}
	if err := r.mirror(l.Addr()); err != nil {
		return err
	}
	server := httpserver.New(httpserver.Images, http.HandlerFunc(r.handle), slog.New(slog.DiscardHandler))
	defer context.AfterFunc(ctx, func() { server.Close() })()
	ready()
	if err := server.Serve(httpserver.Images.Listen(l)); !errors.Is(err, http.ErrServerClosed) {
		return fmt.Errorf("images: %w", err)
	}
	return nil
}

// everyRegistry is the folder of the mirror of registries without a configuration of their own.
const everyRegistry = "_default"

// mirror has containerd ask this relay for images of the cluster's own before their registries. A mirror of all
// registries that the owner has configured, which the engine writes, stays.
func (r *Relay) mirror(at net.Addr) error {
	dir := filepath.Join(r.cfg.Folder, everyRegistry)
	text, err := os.ReadFile(filepath.Join(dir, "hosts.toml"))
	switch own := err == nil && strings.HasPrefix(string(text), mirrorMark); {
	case err == nil && !own:
		return nil
	case r.cfg.Server == nil && own:
		return os.RemoveAll(dir) // of a worker that became a cluster of its own
	case r.cfg.Server == nil:
		return nil
	}
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return fmt.Errorf("images: %w", err)
	}
	hosts := fmt.Sprintf("%s[host.\"http://%s/%s%s\"]\ncapabilities = [\"pull\", \"resolve\"]\noverride_path = true\n", mirrorMark, at, r.secret, ownImages)
	if err := os.WriteFile(filepath.Join(dir, "hosts.toml"), []byte(hosts), 0o600); err != nil {
		return fmt.Errorf("images: %w", err)
	}
	return nil
}

// mirrorMark begins the file of mirror, ownImages the paths of its requests.
const mirrorMark, ownImages = "# written by rivulet\n", "/own"

// ownWanted is an object of a registry: repository, kind, name. The registry is the query's ns.
var ownWanted = regexp.MustCompile(`^/own/([a-z0-9._/-]+)/(manifests|blobs)/([A-Za-z0-9_.:-]+)$`)

// handleOwn answers a request for an image of the cluster's own: what the server has not comes from its registry.
func (r *Relay) handleOwn(w http.ResponseWriter, in *http.Request, path string) {
	what := ownWanted.FindStringSubmatch(path)
	if what == nil || strings.Contains(path, "..") || in.Method != http.MethodGet && in.Method != http.MethodHead {
		http.NotFound(w, in)
		return
	}
	resp, err := r.requestServer(in, object{host: in.URL.Query().Get("ns"), repository: what[1], kind: what[2], ref: what[3]})
	if err != nil {
		http.NotFound(w, in)
		return
	}
	send(w, resp, false)
}

// wanted is an object of a registry: consumer, host, repository, kind, name.
var wanted = regexp.MustCompile(`^/([0-9a-f]{32})/([a-z0-9.-]+)(?:__([0-9]{1,5}))?/([a-z0-9._/-]+)/(manifests|blobs)/([A-Za-z0-9_.:-]+)$`)

func (r *Relay) handle(w http.ResponseWriter, in *http.Request) {
	path, mine := strings.CutPrefix(in.URL.Path, "/"+r.secret)
	if mine && strings.HasPrefix(path, ownImages+"/") {
		r.handleOwn(w, in, path)
		return
	}
	what := wanted.FindStringSubmatch(path)
	switch {
	case !mine || what == nil || strings.Contains(path, ".."):
		http.Error(w, "there is nothing here", http.StatusNotFound)
		return
	case in.Method != http.MethodGet && in.Method != http.MethodHead:
		http.Error(w, "images are fetched only", http.StatusMethodNotAllowed)
		return
	}
	o := object{consumer: what[1], host: what[2], repository: what[4], kind: what[5], ref: what[6]}
	if port := what[3]; port != "" {
		o.host += ":" + port
	}
	resp, err := r.first(in, o)
	if err != nil {
		var refused func()
		if refused = r.registry(w, in, o, what[2]); refused == nil {
			return
		}
		if resp, err = r.requestHome(in, o, false); err != nil {
			refused()
			return
		}
	}
	send(w, resp, false)
}

// registry answers from the object's registry. If that fails nothing is answered yet; the returned function sends the
// failure.
func (r *Relay) registry(w http.ResponseWriter, in *http.Request, o object, plainHost string) (refused func()) {
	refuse := func(text string, code int) func() { return func() { http.Error(w, text, code) } }
	if withheld := r.cfg.Withheld(); slices.Contains(withheld, "*") || slices.Contains(withheld, plainHost) {
		return refuse("the owner's credentials are not for other clusters", http.StatusForbidden)
	}
	repository, object := o.repository, o.kind+"/"+o.ref
	ends, err := endpoints(r.cfg.Registries(), o.host)
	if err != nil {
		return refuse(err.Error(), http.StatusForbidden)
	}
	user, secret, login := in.BasicAuth()
	err = errors.New("no endpoint")
	for i, e := range ends {
		last := i == len(ends)-1
		if last && login { // a tenant's login is for its registry, not for a mirror of the owner
			e.user, e.secret = user, secret
		}
		var resp *http.Response
		if resp, err = r.fetch(in, e, repository, object); err != nil {
			continue
		}
		if resp.StatusCode < 300 {
			send(w, resp, last && !login)
			return nil
		}
		if last {
			return func() { send(w, resp, !login) }
		}
		resp.Body.Close()
	}
	return refuse(err.Error(), http.StatusBadGateway)
}

// send forwards an answer. With challenge, containerd repeats the request with the pod's login.
func send(w http.ResponseWriter, resp *http.Response, challenge bool) {
	defer resp.Body.Close()
	for _, h := range []string{"Content-Type", "Content-Length", "Content-Range", "Accept-Ranges", "Docker-Content-Digest", "Retry-After"} {
		if v := resp.Header.Get(h); v != "" {
			w.Header().Set(h, v)
		}
	}
	if challenge && resp.StatusCode == http.StatusUnauthorized {
		w.Header().Set("WWW-Authenticate", `Basic realm="the registry"`)
	}
	w.WriteHeader(resp.StatusCode)
	_, _ = io.Copy(w, resp.Body) // containerd checks length and digest
}

// fetch requests an object from one endpoint, with the tokens that it demands.
func (r *Relay) fetch(in *http.Request, e endpoint, repository, object string) (*http.Response, error) {
	transport := r.public
	if e.own {
		transport = e.transport()
		defer transport.CloseIdleConnections()
	}
	client := &http.Client{Transport: transport}
	auth := r.authorizer(client, e, repository)
	ctx := in.Context()
	var asked []*http.Response
	for {
		out, err := http.NewRequestWithContext(ctx, in.Method, e.base+"/"+e.rewritten(repository)+"/"+object, nil)
		if err != nil {
			return nil, err
		}
		for _, h := range []string{"Accept", "Range", "If-Range"} {
			out.Header[h] = in.Header[h]
		}
		if err := auth.Authorize(ctx, out); err != nil {
			return nil, err
		}
		resp, err := client.Do(out)
		if err != nil {
			return nil, err
		}
		asked = append(asked, resp)
		if resp.StatusCode != http.StatusUnauthorized || len(asked) == 3 || auth.AddResponses(ctx, asked) != nil {
			return resp, nil
		}
		resp.Body.Close()
	}
}

// authorizer caches the tokens of an endpoint for a repository and a login.
func (r *Relay) authorizer(client *http.Client, e endpoint, repository string) docker.Authorizer {
	key := strings.Join([]string{e.base, repository, e.user, e.secret}, "\n")
	r.mu.Lock()
	defer r.mu.Unlock()
	if len(r.known) >= 64 {
		clear(r.known)
	}
	if r.known[key] == nil {
		user := e.user
		if user == tokenUser {
			user = ""
		}
		r.known[key] = docker.NewDockerAuthorizer(docker.WithAuthClient(client), docker.WithAuthCreds(func(string) (string, string, error) {
			return user, e.secret, nil
		}))
	}
	return r.known[key]
}

func transport(dial func(context.Context, string, string) (net.Conn, error)) *http.Transport {
	t := http.DefaultTransport.(*http.Transport).Clone()
	t.DialContext, t.ResponseHeaderTimeout, t.MaxIdleConns = dial, time.Minute, 8
	return t
}
