package webconsole

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"strconv"
	"strings"
	"sync"
	"time"

	"rivulet/appliance/operate"
)

const (
	// maxShells bounds the shells of all sessions, maxLogs the logs that are followed.
	maxShells, maxLogs = 4, 32
	// shellIdle ends a shell without input, streamTime any stream.
	shellIdle, streamTime = 15 * time.Minute, 4 * time.Hour
	// inputTime is how long a line waits for the program in a shell to read it.
	inputTime = 5 * time.Second
)

// shell is a shell that runs in a container.
type shell struct {
	session string
	in      *io.PipeWriter
	touch   func()
	turn    chan struct{} // has a value while a line is written
}

// streams are the shells and logs that are open.
type streams struct {
	mu     sync.Mutex
	shells map[string]*shell
	logs   int
}

// serveStream answers with events of text: /log/NAMESPACE/POD or /shell/NAMESPACE/POD, with ?container. It ends with
// its session.
func (c *Console) serveStream(w http.ResponseWriter, r *http.Request, s Session, path string) {
	kind, rest, _ := strings.Cut(strings.TrimPrefix(path, "/"), "/")
	namespace, pod, ok := strings.Cut(rest, "/")
	if !ok || strings.Contains(pod, "/") {
		http.NotFound(w, r)
		return
	}
	ctx, cancel := context.WithTimeout(r.Context(), streamTime)
	defer cancel()
	go c.endWith(ctx, s, cancel)
	out := newEvents(w)
	defer out.close()
	query := r.URL.Query()
	var err error
	switch kind {
	case "log":
		err = c.follow(ctx, out, operate.LogRequest{Namespace: namespace, Pod: pod, Container: query.Get("container"), Previous: query.Has("previous"), Follow: !query.Has("previous"), Since: since(query)})
	case "shell":
		if !s.Role.Includes(Admin) {
			answer(w, http.StatusForbidden, failed(fmt.Errorf("%w: a shell needs the role admin", errRole)))
			return
		}
		c.cfg.Log.Info("web console", "action", "shell", "namespace", namespace, "pod", pod, "session", s.ID)
		err = c.runShell(ctx, cancel, out, s, namespace, pod, query.Get("container"))
	default:
		http.NotFound(w, r)
		return
	}
	end := "It has ended."
	switch {
	case errors.Is(ctx.Err(), context.DeadlineExceeded):
		end = fmt.Sprintf("It was open for %v.", streamTime)
	case err != nil && ctx.Err() == nil:
		end = err.Error()
	}
	_ = out.send(map[string]string{"end": end})
}

// since is the age of the oldest line that a browser has not seen yet; 0: all.
func since(query url.Values) time.Duration {
	n, err := strconv.ParseUint(query.Get("since"), 10, 31)
	if err != nil {
		return 0
	}
	return time.Duration(n) * time.Second
}

// endWith cancels a stream when its session has ended.
func (c *Console) endWith(ctx context.Context, s Session, cancel func()) {
	tick := time.NewTicker(liveEvery)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
			if !c.access.valid(s.ID) {
				cancel()
				return
			}
		}
	}
}

func (c *Console) follow(ctx context.Context, out *events, q operate.LogRequest) error {
	c.streams.mu.Lock()
	full := c.streams.logs >= maxLogs
	if !full {
		c.streams.logs++
	}
	c.streams.mu.Unlock()
	if full {
		return errors.New("too many logs are open; close one, or use: kubectl logs -f")
	}
	defer func() {
		c.streams.mu.Lock()
		c.streams.logs--
		c.streams.mu.Unlock()
	}()
	log, err := c.cluster().Log(ctx, q)
	if err != nil {
		return err
	}
	defer log.Close()
	go out.beat(ctx)
	_, err = io.Copy(out, log)
	return err
}

func (c *Console) runShell(ctx context.Context, cancel func(), out *events, s Session, namespace, pod, container string) error {
	rest, err := c.cfg.REST()
	if err != nil {
		return fmt.Errorf("the API server has not started yet: %w; see: rivulet status", err)
	}
	idle := time.AfterFunc(shellIdle, cancel)
	defer idle.Stop()
	in, input := io.Pipe()
	defer in.Close()
	id := randomID()
	c.streams.mu.Lock()
	if len(c.streams.shells) >= maxShells {
		c.streams.mu.Unlock()
		return fmt.Errorf("%d shells are open in the console; end one, or use: kubectl exec", maxShells)
	}
	if c.streams.shells == nil {
		c.streams.shells = map[string]*shell{}
	}
	c.streams.shells[id] = &shell{s.ID, input, func() { idle.Reset(shellIdle) }, make(chan struct{}, 1)}
	c.streams.mu.Unlock()
	defer func() {
		c.streams.mu.Lock()
		defer c.streams.mu.Unlock()
		delete(c.streams.shells, id)
	}()
	_ = out.send(map[string]string{"id": id})
	go out.beat(ctx)
	return c.cluster().Shell(ctx, rest, namespace, pod, container, operate.Terminal{In: in, Out: out, Err: out})
}

// shellInput passes a line on to a shell of the session.
func shellInput(ctx context.Context, c *Console, q *call) (result, error) {
	c.streams.mu.Lock()
	sh := c.streams.shells[q.Get("id")]
	c.streams.mu.Unlock()
	if sh == nil || sh.session != q.Session.ID {
		return result{}, errors.New("the shell has ended; open it again")
	}
	late := time.NewTimer(inputTime)
	defer late.Stop()
	select {
	case sh.turn <- struct{}{}:
	case <-late.C:
		return result{}, errors.New("the program has not read the line before; this one is not sent: wait, or open the shell again")
	case <-ctx.Done():
		return result{}, ctx.Err()
	}
	sh.touch()
	done := make(chan error, 1)
	go func() { // it ends with the shell at the latest
		defer func() { <-sh.turn }()
		_, err := io.WriteString(sh.in, q.Get("line")+"\n")
		done <- err
	}()
	select {
	case err := <-done:
		return result{}, err
	case <-late.C:
	case <-ctx.Done():
	}
	return result{}, errors.New("the program has not read the line yet, and gets it when it reads: wait, and do not send it again, or open the shell again")
}

// events writes a stream of events; it may be used concurrently.
type events struct {
	mu  sync.Mutex
	w   http.ResponseWriter
	out *http.ResponseController
	// closed: the request has been answered. A copier of a shell's output may outlive it, and a write to the answer of an
	// ended request panics.
	closed bool
}

func newEvents(w http.ResponseWriter) *events {
	return &events{w: w, out: http.NewResponseController(w)}
}

// close waits for a write that has begun; later ones fail.
func (e *events) close() {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.closed = true
}

// send writes one event.
func (e *events) send(v any) error {
	blob, err := json.Marshal(v)
	if err != nil {
		return err
	}
	return e.write("data: " + string(blob) + "\n\n")
}

func (e *events) write(text string) error {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.closed {
		return io.ErrClosedPipe
	}
	e.w.Header().Set("Content-Type", "text/event-stream")
	_ = e.out.SetReadDeadline(time.Time{})
	_ = e.out.SetWriteDeadline(time.Now().Add(answerTime))
	if _, err := io.WriteString(e.w, text); err != nil {
		return err
	}
	return e.out.Flush()
}

// Write sends text.
func (e *events) Write(p []byte) (int, error) {
	if err := e.send(map[string]string{"text": strings.ToValidUTF8(string(p), "\uFFFD")}); err != nil {
		return 0, err
	}
	return len(p), nil
}

// beat lets both sides notice that the other has gone.
func (e *events) beat(ctx context.Context) {
	tick := time.NewTicker(8 * liveEvery)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
			if e.write(": \n\n") != nil {
				return
			}
		}
	}
}

// streamOf is the path of the stream that a pod's page shows, with its title.
func streamOf(namespace, pod string, q url.Values) (path, title string, isShell bool) {
	container := url.Values{"container": {q.Get("container")}}
	at := "/" + url.PathEscape(namespace) + "/" + url.PathEscape(pod) + "?"
	switch q.Get("show") {
	case "log":
		return "log" + at + container.Encode(), "Log of " + q.Get("container"), false
	case "previous":
		container.Set("previous", "yes")
		return "log" + at + container.Encode(), "Log of " + q.Get("container") + " before the restart", false
	case "shell":
		return "shell" + at + container.Encode(), "Shell in " + q.Get("container"), true
	}
	return "", "", false
}
