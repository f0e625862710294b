package tunnel

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"reflect"
	"strconv"
	"sync"
	"syscall"
	"time"
)

// ControllerConfig is what a Controller needs. All fields are required.
type ControllerConfig struct {
	Helper  string // path of rivulet-tunnel
	Socket  string
	PIDFile string
	LogFile string
	// Version of the helper that is wanted; one that runs with another is replaced.
	Version string
	Log     *slog.Logger
}

// Controller is the supervisor's side of the data plane's process. It adopts a
// process that runs already, starts one otherwise, starts it again when it dies,
// and tells it the last Config each time. It alone writes the PID file.
type Controller struct {
	cfg    ControllerConfig
	client *http.Client

	mu   sync.Mutex
	last *Config // what the process was told last
	stop context.CancelFunc
	done chan struct{}
}

// How often the process is looked at, and how long one that was started may take to answer.
const (
	watchEvery = 300 * time.Millisecond
	startLimit = 10 * time.Second
)

// NewController returns a controller that does nothing yet.
func NewController(cfg ControllerConfig) *Controller {
	return &Controller{cfg: cfg, client: &http.Client{Timeout: 10 * time.Second, Transport: &http.Transport{
		DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
			return (&net.Dialer{}).DialContext(ctx, "unix", cfg.Socket)
		},
		DisableKeepAlives: true,
	}}}
}

// Start makes sure that the process runs, and watches it until Detach or Stop.
func (c *Controller) Start(ctx context.Context) error {
	if err := c.ensure(ctx); err != nil {
		return err
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.stop != nil {
		return nil
	}
	watch, cancel := context.WithCancel(context.WithoutCancel(ctx))
	c.stop, c.done = cancel, make(chan struct{})
	go c.watch(watch, c.done)
	return nil
}

// watch starts the process again when it does not answer any more.
func (c *Controller) watch(ctx context.Context, done chan struct{}) {
	defer close(done)
	tick := time.NewTicker(watchEvery)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
		if _, err := c.Status(ctx); err == nil || ctx.Err() != nil {
			continue
		}
		c.cfg.Log.Warn("the tunnel process does not answer; starting it again", "log", c.cfg.LogFile)
		if err := c.ensure(ctx); err != nil {
			c.cfg.Log.Error("the tunnel process does not start; trying again", "error", err)
			continue
		}
		c.mu.Lock()
		last := c.last
		c.mu.Unlock()
		if last == nil {
			continue
		}
		if err := c.put(ctx, *last); err != nil {
			c.cfg.Log.Error("the tunnel does not take its configuration; trying again", "error", err)
			c.mu.Lock()
			c.last = nil // the next Apply must tell it, whatever it says
			c.mu.Unlock()
		}
	}
}

// ensure returns once a process of our version answers.
func (c *Controller) ensure(ctx context.Context) error {
	st, err := c.Status(ctx)
	if err == nil && st.Version == c.cfg.Version {
		return c.writePID(st.PID)
	}
	if err == nil {
		c.cfg.Log.Info("replacing the tunnel process of another version", "version", st.Version, "pid", st.PID)
		if err := c.end(ctx); err != nil {
			return err
		}
	}
	return c.launch(ctx)
}

func (c *Controller) launch(ctx context.Context) error {
	if err := os.MkdirAll(filepath.Dir(c.cfg.LogFile), 0o700); err != nil {
		return fmt.Errorf("tunnel: %w", err)
	}
	log, err := openLog(c.cfg.LogFile)
	if err != nil {
		return err
	}
	defer log.Close()
	cmd := exec.Command(c.cfg.Helper, "--socket", c.cfg.Socket)
	cmd.Dir = "/"
	cmd.Stdout, cmd.Stderr = log, log
	// A session of its own and no parent-death signal: it outlives the supervisor.
	cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
	if err := cmd.Start(); err != nil {
		return fmt.Errorf("tunnel: start %s: %w", c.cfg.Helper, err)
	}
	ended := make(chan error, 1)
	go func() { ended <- cmd.Wait() }()
	deadline := time.NewTimer(startLimit)
	defer deadline.Stop()
	for {
		if st, err := c.Status(ctx); err == nil {
			return c.writePID(st.PID)
		}
		select {
		case <-ctx.Done():
			return ctx.Err()
		case err := <-ended:
			return fmt.Errorf("tunnel: %s ended at once (%v): see %s", filepath.Base(c.cfg.Helper), err, c.cfg.LogFile)
		case <-deadline.C:
			cmd.Process.Kill()
			return fmt.Errorf("tunnel: %s did not answer within %s: see %s", filepath.Base(c.cfg.Helper), startLimit, c.cfg.LogFile)
		case <-time.After(10 * time.Millisecond):
		}
	}
}

// maxLog is the size at which the log is put aside when the process starts, bytes.
const maxLog = 5 << 20

func openLog(path string) (*os.File, error) {
	if fi, err := os.Stat(path); err == nil && fi.Size() > maxLog {
		_ = os.Rename(path, path+".1")
	}
	f, err := os.OpenFile(path, os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	if err != nil {
		return nil, fmt.Errorf("tunnel: %w", err)
	}
	return f, nil
}

func (c *Controller) writePID(pid int) error {
	if err := os.WriteFile(c.cfg.PIDFile, []byte(strconv.Itoa(pid)+"\n"), 0o644); err != nil {
		return fmt.Errorf("tunnel: %w", err)
	}
	return nil
}

// Apply makes cfg the data plane's whole state. It is cheap to call with what is
// in force already.
func (c *Controller) Apply(ctx context.Context, cfg Config) error {
	c.mu.Lock()
	same := c.last != nil && reflect.DeepEqual(*c.last, cfg)
	c.mu.Unlock()
	if same {
		return nil
	}
	if err := c.put(ctx, cfg); err != nil {
		return err
	}
	c.mu.Lock()
	c.last = &cfg
	c.mu.Unlock()
	return nil
}

func (c *Controller) put(ctx context.Context, cfg Config) error {
	body, err := json.Marshal(cfg)
	if err != nil {
		return fmt.Errorf("tunnel: %w", err)
	}
	return c.call(ctx, http.MethodPut, "/v1/config", bytes.NewReader(body), nil)
}

// Status asks the process.
func (c *Controller) Status(ctx context.Context) (Status, error) {
	var st Status
	err := c.call(ctx, http.MethodGet, "/v1/status", nil, &st)
	return st, err
}

func (c *Controller) call(ctx context.Context, method, path string, body io.Reader, out any) error {
	req, err := http.NewRequestWithContext(ctx, method, "http://tunnel"+path, body)
	if err != nil {
		return fmt.Errorf("tunnel: %w", err)
	}
	resp, err := c.client.Do(req)
	if err != nil {
		return fmt.Errorf("tunnel: %w", err)
	}
	defer resp.Body.Close()
	if resp.StatusCode >= 300 {
		msg, _ := io.ReadAll(io.LimitReader(resp.Body, 4<<10))
		return errors.New(string(bytes.TrimSpace(msg)))
	}
	if out == nil {
		return nil
	}
	if err := json.NewDecoder(resp.Body).Decode(out); err != nil {
		return fmt.Errorf("tunnel: %w", err)
	}
	return nil
}

// Detach ends the watch and leaves the process as it is.
func (c *Controller) Detach() {
	c.mu.Lock()
	stop, done := c.stop, c.done
	c.stop = nil
	c.mu.Unlock()
	if stop != nil {
		stop()
		<-done
	}
}

// Stop ends the process; its interface, routes and firewall go with it.
func (c *Controller) Stop(ctx context.Context) error {
	c.Detach()
	return c.end(ctx)
}

func (c *Controller) end(ctx context.Context) error {
	if err := c.call(ctx, http.MethodPost, "/v1/stop", nil, nil); err != nil {
		return err
	}
	for {
		if _, err := c.Status(ctx); err != nil {
			_ = os.Remove(c.cfg.PIDFile)
			return ctx.Err()
		}
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-time.After(10 * time.Millisecond):
		}
	}
}
