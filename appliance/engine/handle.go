package engine

import (
	"context"
	"sync"

	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"

	"rivulet/appliance/state/paths"
)

// Handle gives other components access to an engine: its folders, which are known before it starts, and clients. It
// stays valid over engine restarts. All methods may be called at any time.
type Handle struct {
	state string // folder

	mu      sync.Mutex
	engine  *Engine
	client  kubernetes.Interface
	version string
}

// NewHandle returns the handle of the engines in a state folder.
func NewHandle(state string) *Handle { return &Handle{state: state} }

// DataDir is k3s's data folder.
func (h *Handle) DataDir() string { return DataDir(h.state) }

// LogFile is the file of the engine's output.
func (h *Handle) LogFile() string { return paths.EngineLog(h.state) }

// Kubeconfig is the path of the administrator's kubeconfig; k3s writes it.
func (h *Handle) Kubeconfig() string { return paths.Kubeconfig(h.state) }

// REST returns the configuration of clients of the API server; an error before k3s has written it.
func (h *Handle) REST() (*rest.Config, error) { return RESTConfig(h.Kubeconfig()) }

// Client is the shared client; nil before the first answer of the API server.
func (h *Handle) Client() kubernetes.Interface {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.client
}

// Version is the API server's version, empty before its first answer.
func (h *Handle) Version() string {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.version
}

// Restart stops the running engine in order and starts it again; why is logged. Pods continue. It does not wait, and
// does nothing before there is an engine.
func (h *Handle) Restart(why string) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.engine != nil {
		h.engine.Restart(why)
	}
}

func (h *Handle) begins(e *Engine) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.engine = e
}

// connect creates the client; news reports that the API server's version changed.
func (h *Handle) connect(ctx context.Context) (news bool, err error) {
	cfg, err := h.REST()
	if err != nil {
		return false, err
	}
	client, err := kubernetes.NewForConfig(cfg)
	if err != nil {
		return false, err
	}
	v, err := client.Discovery().ServerVersion()
	if err != nil {
		return false, err
	}
	if err := ctx.Err(); err != nil {
		return false, err // this engine has ended
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	news = h.version != v.GitVersion
	h.client, h.version = client, v.GitVersion
	return news, nil
}
