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
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"rivulet/fabric/changes"
)

// ControllerConfig has the inputs of a Controller. All fields are required.
type ControllerConfig struct {
	Helper  string // path of rivulet-tunnel
	Socket  string
	PIDFile string
	LogFile string
	// Version is the wanted version of the helper; one with another is replaced.
	Version string
	Log     *slog.Logger
}

// Controller is the supervisor's side of the data plane's process. It adopts a running process or starts one, restarts
// it when it dies, and sends it the last Config each time. It alone writes the PID file.
type Controller struct {
	cfg    ControllerConfig
	client *http.Client // for requests
	stream *http.Client // for the answer that does not end

	checkEvery time.Duration

	push sync.Mutex // held while a Config is sent, so that the newest is last
	mu   sync.Mutex
	last *Config // the last one that the process accepted
	sure bool    // last is in force: no other was tried since
	stop context.CancelFunc
	done chan struct{}
	// deadline is the latest that was set, on CLOCK_BOOTTIME.
	deadline time.Duration
}

const (
	startLimit = 10 * time.Second       // for a started process, to answer
	hungAfter  = 5 * time.Second        // for one that runs
	checkEvery = 30 * time.Second       // for a hang; an exit is detected at once
	firstWait  = 200 * time.Millisecond // before a repeated restart; doubles
	longWait   = 5 * time.Second
)

// NewController returns an idle controller.
func NewController(cfg ControllerConfig) *Controller {
	transport := &http.Transport{
		DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
			return (&net.Dialer{}).DialContext(ctx, "unix", cfg.Socket)
		},
		DisableKeepAlives: true,
	}
	begun := transport.Clone()
	begun.ResponseHeaderTimeout = hungAfter // a stream begins at once, unless the process hangs
	return &Controller{cfg: cfg,
		client: &http.Client{Timeout: 10 * time.Second, Transport: transport},
		stream: &http.Client{Transport: begun}, checkEvery: checkEvery,
	}
}

// Start ensures that the process runs, and watches it until Detach or Stop.
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

// Run is Start, then started, and Detach when ctx ends.
func (c *Controller) Run(ctx context.Context, started func()) error {
	if err := c.Start(ctx); err != nil {
		return err
	}
	defer c.Detach()
	started()
	<-ctx.Done()
	return nil
}

// watch restarts the process when it has died or does not answer.
func (c *Controller) watch(ctx context.Context, done chan struct{}) {
	defer close(done)
	var wait time.Duration
	for well := true; ; {
		if well {
			began := time.Now()
			c.attend(ctx)
			if ctx.Err() != nil {
				return
			}
			c.cfg.Log.Warn("the tunnel process does not answer; starting it again", "log", c.cfg.LogFile)
			if time.Since(began) > longWait {
				wait = 0 // it has run well: at once
			}
		}
		select {
		case <-ctx.Done():
			return
		case <-time.After(wait):
			wait = min(max(2*wait, firstWait), longWait)
		}
		err := c.ensure(ctx)
		if err == nil {
			err = c.configure(ctx)
		}
		if well = err == nil; !well && ctx.Err() == nil {
			c.cfg.Log.Error("the tunnel does not come back; trying again", "err", err)
		}
	}
}

// attend returns when the process has died or hangs.
func (c *Controller) attend(ctx context.Context) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://tunnel/v1/alive", nil)
	if err != nil {
		return
	}
	resp, err := c.stream.Do(req)
	if err != nil {
		return
	}
	defer resp.Body.Close()
	gone := make(chan struct{})
	go func() {
		defer close(gone)
		_, _ = io.Copy(io.Discard, resp.Body)
	}()
	ticker := time.NewTicker(c.checkEvery)
	defer ticker.Stop()
	for {
		select {
		case <-gone:
			return
		case <-ticker.C:
			if _, err := c.Status(ctx); err != nil {
				return
			}
		}
	}
}

// configure sends the last Config to a process that has none.
func (c *Controller) configure(ctx context.Context) error {
	c.push.Lock()
	defer c.push.Unlock()
	c.mu.Lock()
	last := c.last
	c.mu.Unlock()
	if last == nil || last.Leased && c.known() <= changes.BootTime() { // without a lease, Apply comes after the next one
		return nil
	}
	if err := c.put(ctx, *last); err != nil {
		return fmt.Errorf("the tunnel does not take its configuration: %w", err)
	}
	return nil
}

// ensure returns once a process of this version answers.
func (c *Controller) ensure(ctx context.Context) error {
	st, err := c.Status(ctx)
	if err == nil && st.Version == c.cfg.Version {
		return c.writePID(st.PID)
	}
	if errors.Is(err, context.DeadlineExceeded) && ctx.Err() == nil {
		c.killHung()
	}
	if err == nil {
		c.cfg.Log.Info("replacing the tunnel process of another version", "version", st.Version, "pid", st.PID)
		if err := c.end(ctx); err != nil {
			return err
		}
	}
	return c.launch(ctx)
}

// killHung ends the process at the other end of the socket, which the kernel identifies.
func (c *Controller) killHung() {
	conn, err := net.Dial("unix", c.cfg.Socket)
	if err != nil {
		return
	}
	defer conn.Close()
	raw, err := conn.(*net.UnixConn).SyscallConn()
	if err != nil {
		return
	}
	_ = raw.Control(func(fd uintptr) {
		if who, err := unix.GetsockoptUcred(int(fd), unix.SOL_SOCKET, unix.SO_PEERCRED); err == nil && who.Pid > 0 {
			c.cfg.Log.Warn("the tunnel process hangs; ending it", "pid", who.Pid)
			_ = unix.Kill(int(who.Pid), unix.SIGKILL)
		}
	})
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
	cmd := exec.Command(c.cfg.Helper, "--socket", c.cfg.Socket, "--log", c.cfg.LogFile)
	cmd.Dir = "/"
	cmd.Env = withoutManager(os.Environ())
	cmd.Stdout, cmd.Stderr = log, log
	// With a session of its own and no parent-death signal, it outlives the supervisor.
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

// openLog opens the file for messages before the process has opened its log itself.
func openLog(path string) (*os.File, error) {
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

// Apply makes cfg the data plane's whole state. It is cheap if cfg is in force already.
func (c *Controller) Apply(ctx context.Context, cfg Config) error {
	c.push.Lock()
	defer c.push.Unlock()
	c.mu.Lock()
	same := c.sure && reflect.DeepEqual(*c.last, cfg)
	c.sure = same
	c.mu.Unlock()
	if same {
		return nil
	}
	if err := c.put(ctx, cfg); err != nil {
		return err
	}
	c.mu.Lock()
	c.last, c.sure = &cfg, true
	c.mu.Unlock()
	return nil
}

func (c *Controller) put(ctx context.Context, cfg Config) error {
	body, err := json.Marshal(cfg)
	if err != nil {
		return fmt.Errorf("tunnel: %w", err)
	}
	if at := c.known(); cfg.Leased && at > changes.BootTime() {
		_, _ = c.putDeadline(ctx, at) // if it is refused, so is cfg
	}
	return c.call(ctx, http.MethodPut, "/v1/config", bytes.NewReader(body), nil)
}

func (c *Controller) Status(ctx context.Context) (Status, error) {
	ctx, cancel := context.WithTimeout(ctx, hungAfter)
	defer cancel()
	var st Status
	err := c.call(ctx, http.MethodGet, "/v1/status", nil, &st)
	if err == nil && st.Port == 0 {
		c.doubt()
	}
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

// Detach ends the watch; the process keeps running.
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
		if !changes.Wait(ctx, 10*time.Millisecond) {
			return ctx.Err()
		}
	}
}

// withoutManager removes the variables that a service manager set for the supervisor alone.
func withoutManager(env []string) []string {
	return slices.DeleteFunc(env, func(kv string) bool {
		return strings.HasPrefix(kv, "NOTIFY_SOCKET=") || strings.HasPrefix(kv, "WATCHDOG_")
	})
}
