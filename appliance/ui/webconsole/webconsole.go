// Package webconsole is the web console of a device (docs/design/console.md): HTTPS on Port for this device and hosts
// on a link of its LANs, after a sign-in by a code. It is a client of the supervisor's socket and of home's API server,
// as the command line is, and has the same rights at most; the role of a session bounds them.
//
// It reads both of these, and alone writes its notes in the store: sessions, hashes of codes, its certificate. Restart:
// sessions continue. Failure: a port in use is reported with a cure and retried; while the engine is away pages show
// what the supervisor knows.
package webconsole

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/netip"
	"sync"
	"syscall"
	"time"

	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"

	"rivulet/appliance/config"
	"rivulet/appliance/health"
	"rivulet/appliance/lifecycle"
	"rivulet/fabric/changes"
	"rivulet/fabric/connlimit"
	"rivulet/fabric/httpserver"
	"rivulet/fabric/netmon"
)

// Port is the console's port on the LAN.
const Port = 7443

const (
	again   = 5 * time.Second // pause before the next attempt to listen on a port in use
	maxBody = 64 << 10        // bytes of a request
)

// answerTime is for one answer; streams extend it.
var answerTime = httpserver.Console.Whole

// Config is the input of New. All of it is required, except Port.
type Config struct {
	Store Store
	// StateDir and RunDir are the supervisor's folders, Executable is this program.
	StateDir, RunDir, Executable string
	// REST returns the API server's configuration with the owner's rights; an error before it is known. Client is the
	// client of it, nil before the API server's first answer.
	REST   func() (*rest.Config, error)
	Client func() kubernetes.Interface
	// Page is the device's status page: the console has its name and its visitors.
	Page   Page
	Health *health.Tracker
	Log    *slog.Logger
	Port   int // 0 is Port
}

// Page is package statuspage's.
type Page interface {
	// Admit reports whether a host may connect, Called whether the device is called that, by name or address.
	Admit(netip.Addr) bool
	Called(host string) bool
	// Host is what a browser on the LAN calls the device; empty while that is unknown.
	Host() string
	// OnByDefault is true on a device of the image.
	OnByDefault() bool
	Configure(set *bool, announce bool, names []string)
}

// Console is the web console of a device.
type Console struct {
	cfg     Config
	access  *access
	now     func() time.Time
	poke    chan struct{}
	views   views
	streams streams
	making  chan struct{} // one element for each page that is made

	mu        sync.Mutex
	on        bool
	names     []string // of the certificate
	listening bool
	cert      tls.Certificate
	tickets   map[string]ticket
}

// New returns a console that is off until Configure.
func New(cfg Config) *Console {
	if cfg.Port == 0 {
		cfg.Port = Port
	}
	return &Console{cfg: cfg, now: time.Now, making: make(chan struct{}, maxMaking), access: loadAccess(cfg.Store, time.Now), poke: make(chan struct{}, 1), tickets: map[string]ticket{}}
}

// client is of home's API server.
func (c *Console) client() (kubernetes.Interface, error) {
	if client := c.cfg.Client(); client != nil {
		return client, nil
	}
	return nil, errors.New("the API server has not started yet; see: rivulet status")
}

// Configure takes the configuration and the device's names on the LAN, without .local, for the console and the status
// page.
func (c *Console) Configure(set config.Config, names []string) {
	on := c.cfg.Page.OnByDefault()
	if set.Console != nil {
		on = *set.Console
	}
	c.cfg.Page.Configure(set.StatusPage, on, names)
	var full []string
	for _, n := range names {
		full = append(full, n+".local")
	}
	c.mu.Lock()
	c.on, c.names = on, full
	c.mu.Unlock()
	if err := c.access.configure(set.ConsoleCode); err != nil {
		c.cfg.Log.Warn("sign-ins of the former code are not ended in the store", "err", err)
	}
	changes.Poke(c.poke)
}

// URL is the console's address for a browser on the LAN; empty while it is off.
func (c *Console) URL() string {
	c.mu.Lock()
	defer c.mu.Unlock()
	host := c.cfg.Page.Host()
	if !c.listening || host == "" {
		return ""
	}
	return fmt.Sprintf("https://%s:%d", host, c.cfg.Port)
}

// Run serves the console while it is on.
func (c *Console) Run(ctx context.Context, stage *lifecycle.Stage) error {
	c.run(ctx, stage.Ready)
	return nil
}

func (c *Console) run(ctx context.Context, ready func()) {
	var end func()
	var used []string // names of the certificate in use
	stop := func() {
		if end != nil {
			end()
			end = nil
		}
	}
	defer stop()
	for {
		c.mu.Lock()
		on, names := c.on, c.names
		c.mu.Unlock()
		if end != nil && (!on || fmt.Sprint(names) != fmt.Sprint(used)) {
			stop()
		}
		var err error
		if on && end == nil {
			if end, err = c.listen(ctx, names); err == nil {
				used = names
			}
		}
		c.mu.Lock()
		c.listening = end != nil
		c.mu.Unlock()
		c.cfg.Health.Report(health.WebConsole, err)
		ready()
		var retry <-chan time.Time
		if err != nil {
			retry = time.After(again)
		}
		select {
		case <-ctx.Done():
			return
		case <-retry:
		case <-c.poke:
		}
	}
}

// listen serves until the returned function is called; then all connections are closed.
func (c *Console) listen(ctx context.Context, names []string) (end func(), err error) {
	cert, err := certificate(c.cfg.Store, names)
	if err != nil {
		return nil, fmt.Errorf("the console's certificate: %w; see: rivulet doctor", err)
	}
	l, err := new(net.ListenConfig).Listen(ctx, "tcp", fmt.Sprintf(":%d", c.cfg.Port))
	if errors.Is(err, syscall.EADDRINUSE) {
		return nil, fmt.Errorf("port %d/tcp is taken%s: there is no web console; free the port, or set console: false", c.cfg.Port, netmon.Listener("tcp", c.cfg.Port))
	}
	if err != nil {
		return nil, fmt.Errorf("port %d/tcp: %w; set console: false, or see: rivulet doctor", c.cfg.Port, err)
	}
	c.mu.Lock()
	c.cert = cert
	c.mu.Unlock()
	ctx, cancel := context.WithCancel(ctx)
	srv := httpserver.New(httpserver.Console, c, c.cfg.Log)
	srv.TLSConfig = &tls.Config{MinVersion: tls.VersionTLS12, Certificates: []tls.Certificate{cert}}
	srv.BaseContext = func(net.Listener) context.Context { return ctx }
	srv.ConnContext = connlimit.InContext // strangers until their first request with a session
	limited := httpserver.Console.Listen(connlimit.Admitting{Listener: l, Admit: c.cfg.Page.Admit})
	done := make(chan struct{})
	go func() {
		defer close(done)
		srv.ServeTLS(limited, "", "") //nolint:errcheck // ends when it is closed
	}()
	c.cfg.Log.Info("web console", "port", c.cfg.Port)
	return func() {
		cancel()
		l.Close()
		srv.Close()
		<-done
	}, nil
}
