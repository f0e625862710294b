package webconsole

import (
	"bytes"
	"cmp"
	"compress/gzip"
	"context"
	"crypto/rand"
	"crypto/sha256"
	"embed"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"html"
	"io"
	"net/http"
	"net/netip"
	"net/url"
	"path"
	"strings"
	"sync"
	"time"

	"rivulet/fabric/connlimit"
	"rivulet/fabric/cure"
)

//go:embed assets
var assets embed.FS

// The console has no cookie: browsers send those of a host name to all its ports, and an application of a tenant may
// listen on another one. The token is in the storage of the page's origin, which includes the port, and is sent as a
// header; so no other site can send a request in the user's name.
const contentPolicy = "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; img-src 'self'; manifest-src 'self'; form-action 'none'; frame-ancestors 'none'; base-uri 'none'"

// static has the files that need no sign-in, compressed, by path; "/" is the page into which all others are loaded. It
// has the version of all, by which an open page notices an upgrade.
var static = sync.OnceValue(func() map[string]file {
	out := map[string]file{}
	entries, err := assets.ReadDir("assets")
	if err != nil {
		panic(err)
	}
	for _, e := range entries {
		raw, err := assets.ReadFile(path.Join("assets", e.Name()))
		if err != nil {
			panic(err)
		}
		raw = bytes.Replace(raw, []byte(`content="ASSETS"`), []byte(`content="`+assetsVersion()+`"`), 1)
		var packed bytes.Buffer
		z, _ := gzip.NewWriterLevel(&packed, gzip.BestCompression)
		_, _ = z.Write(raw)
		_ = z.Close()
		sum := sha256.Sum256(raw)
		f := file{raw, packed.Bytes(), `"` + hex.EncodeToString(sum[:8]) + `"`, types[path.Ext(e.Name())]}
		if e.Name() == "index.html" {
			out["/"] = f
		} else {
			out["/assets/"+e.Name()] = f
		}
	}
	return out
})

// named is the page with the name of a device in it.
func (f file) named(name string) file {
	f.raw = bytes.ReplaceAll(f.raw, []byte("DEVICE"), []byte(html.EscapeString(name)))
	f.packed = nil
	sum := sha256.Sum256(f.raw)
	f.tag = `"` + hex.EncodeToString(sum[:8]) + `"`
	return f
}

// name is what the device is called on the LAN.
func (c *Console) name() string {
	c.mu.Lock()
	defer c.mu.Unlock()
	if len(c.names) > 0 {
		return strings.TrimSuffix(c.names[0], ".local")
	}
	return cmp.Or(c.cfg.Page.Host(), "this device")
}

// assetsVersion changes with any of the assets.
var assetsVersion = sync.OnceValue(func() string {
	sum := sha256.New()
	entries, _ := assets.ReadDir("assets")
	for _, e := range entries {
		raw, _ := assets.ReadFile(path.Join("assets", e.Name()))
		fmt.Fprintf(sum, "%s %d ", e.Name(), len(raw))
		sum.Write(raw)
	}
	return hex.EncodeToString(sum.Sum(nil)[:8])
})

type file struct {
	raw, packed []byte
	tag, kind   string
}

var types = map[string]string{
	".html": "text/html; charset=utf-8", ".css": "text/css; charset=utf-8", ".js": "text/javascript; charset=utf-8", ".svg": "image/svg+xml",
	".webmanifest": "application/manifest+json",
}

// ServeHTTP answers a browser.
func (c *Console) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	h := w.Header()
	h.Set("Content-Security-Policy", contentPolicy)
	h.Set("X-Content-Type-Options", "nosniff")
	h.Set("Referrer-Policy", "no-referrer")
	h.Set("Cross-Origin-Opener-Policy", "same-origin")
	h.Set("Cross-Origin-Resource-Policy", "same-origin")
	h.Set("Cache-Control", "no-store")
	if !c.cfg.Page.Called(r.Host) {
		http.Error(w, "this device is not called that", http.StatusMisdirectedRequest)
		return
	}
	call, ok := strings.CutPrefix(r.URL.Path, "/api/")
	if !ok {
		c.serveStatic(w, r)
		return
	}
	r.Body = http.MaxBytesReader(w, r.Body, maxBody)
	if call == "sign-in" && r.Method == http.MethodPost {
		c.signIn(w, r)
		return
	}
	if id, ok := strings.CutPrefix(call, "download/"); ok {
		c.download(w, r, id)
		return
	}
	s, ok := c.session(r)
	if !ok {
		answer(w, http.StatusUnauthorized, failure{Error: "you are not signed in, or the sign-in has ended", Cure: "sign in with a new code: sudo rivulet console login"})
		return
	}
	kind, rest, _ := strings.Cut(call, "/")
	switch {
	case kind == "page" && r.Method == http.MethodGet:
		c.servePage(w, r, s, "/"+rest)
	case kind == "stream" && r.Method == http.MethodGet:
		c.serveStream(w, r, s, "/"+rest)
	case kind == "do" && r.Method == http.MethodPost:
		c.serveAction(w, r, s, rest)
	case call == "sign-out" && r.Method == http.MethodPost:
		report(w, c.access.signOut(s.ID))
	default:
		http.NotFound(w, r)
	}
}

func (c *Console) serveStatic(w http.ResponseWriter, r *http.Request) {
	f, ok := static()[r.URL.Path]
	if !ok && !strings.HasPrefix(r.URL.Path, "/assets/") {
		f, ok = static()["/"], true // a page, which the script asks for
	}
	if f.kind == types[".html"] {
		f = f.named(c.name())
	}
	switch {
	case !ok:
		http.NotFound(w, r)
	case r.Method != http.MethodGet && r.Method != http.MethodHead:
		w.Header().Set("Allow", "GET, HEAD")
		http.Error(w, "use GET", http.StatusMethodNotAllowed)
	default:
		h := w.Header()
		h.Set("Content-Type", f.kind)
		h.Set("Cache-Control", "no-cache")
		h.Set("ETag", f.tag)
		h.Set("Vary", "Accept-Encoding")
		body := f.raw
		if f.packed != nil && strings.Contains(r.Header.Get("Accept-Encoding"), "gzip") {
			h.Set("Content-Encoding", "gzip")
			body = f.packed
		}
		if r.Header.Get("If-None-Match") == f.tag {
			w.WriteHeader(http.StatusNotModified)
			return
		}
		w.Write(body) //nolint:errcheck // the visitor has gone
	}
}

// session finds the session of a request, and counts its connection for it.
func (c *Console) session(r *http.Request) (Session, bool) {
	token, ok := strings.CutPrefix(r.Header.Get("Authorization"), "Bearer ")
	if !ok {
		return Session{}, false
	}
	s, ok := c.access.find(token)
	if ok && !connlimit.LastingRequest(r, s.ID) {
		return Session{}, false // too many: it is closed
	}
	return s, ok
}

func (c *Console) signIn(w http.ResponseWriter, r *http.Request) {
	var in struct {
		Code string `json:"code"`
	}
	if err := json.NewDecoder(r.Body).Decode(&in); err != nil {
		answer(w, http.StatusBadRequest, failure{Error: "the request is unreadable", Cure: "load the page again"})
		return
	}
	from := r.RemoteAddr
	if addr, err := netip.ParseAddrPort(from); err == nil {
		from = addr.Addr().Unmap().WithZone("").String()
	}
	token, s, err := c.access.signIn(in.Code, from, r.UserAgent())
	if err != nil {
		c.cfg.Log.Warn("a sign-in to the web console failed", "from", from)
		answer(w, http.StatusForbidden, failed(err))
		return
	}
	c.cfg.Log.Info("signed in to the web console", "from", from, "role", s.Role, "session", s.ID)
	answer(w, http.StatusOK, map[string]any{"token": token, "role": s.Role})
}

// failure is an error with its cure, for the page.
type failure struct {
	Error string `json:"error"`
	Cure  string `json:"cure,omitempty"`
	// Title is that of a page that shows nothing but the error.
	Title string `json:"title,omitempty"`
}

func failed(err error) failure {
	text, cure := cure.Split(err)
	return failure{Error: text, Cure: cure}
}

func answer(w http.ResponseWriter, status int, v any) {
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(status)
	_ = json.NewEncoder(w).Encode(v)
}

func report(w http.ResponseWriter, err error) {
	if err != nil {
		answer(w, http.StatusUnprocessableEntity, failed(err))
		return
	}
	answer(w, http.StatusOK, struct{}{})
}

// servePage answers with a page, or with ?live=1 with a stream that begins with it and continues at each change. The
// stream ends with its session.
func (c *Console) servePage(w http.ResponseWriter, r *http.Request, s Session, path string) {
	query := r.URL.Query()
	live := query.Has("live")
	query.Del("live")
	at := &url.URL{Path: path, RawQuery: query.Encode()}
	if !live {
		shown, err := c.show(r.Context(), s, at)
		if err != nil {
			answer(w, statusOf(err), failed(err))
			return
		}
		w.Header().Set("Content-Type", "application/json")
		w.Write(shown) //nolint:errcheck // the visitor has gone
		return
	}
	w.Header().Set("Content-Type", "text/event-stream")
	out := http.NewResponseController(w)
	_ = out.SetReadDeadline(time.Time{})
	tick := time.NewTicker(liveEvery)
	defer tick.Stop()
	var last []byte
	ends := "not sent yet"
	for quiet := 0; ; quiet++ {
		shown, err := c.show(r.Context(), s, at)
		if err != nil {
			f := failed(err)
			if errors.Is(err, errNoPage) {
				f.Title = "There is no such page"
			}
			shown, _ = json.Marshal(f)
		}
		_ = out.SetWriteDeadline(time.Now().Add(answerTime))
		if now := c.ending(s); now != ends {
			ends = now
			blob, _ := json.Marshal(map[string]string{"ends": ends})
			fmt.Fprintf(w, "data: %s\n\n", blob)
		}
		switch {
		case !bytes.Equal(shown, last):
			_, err = fmt.Fprintf(w, "data: %s\n\n", shown)
			last, quiet = shown, 0
		case quiet%8 == 7: // so that both sides notice that the other has gone
			_, err = io.WriteString(w, ": \n\n")
		default:
			err = nil
		}
		if err != nil || out.Flush() != nil {
			return
		}
		select {
		case <-r.Context().Done():
			return
		case <-tick.C:
		}
		var ok bool
		if s, ok = c.access.used(s.ID); !ok {
			return
		}
	}
}

// ending warns of a sign-in that ends soon; empty if it does not.
func (c *Console) ending(s Session) string {
	left := s.End().Sub(c.now())
	if left > endingSoon {
		return ""
	}
	how := "Sign in again with a new code: sudo rivulet console login"
	if s.Role == View {
		how = "An administrator keeps it on the page People; or sign in again with a new code"
	}
	return fmt.Sprintf("This sign-in ends in %s. %s", span(left), how)
}

// The errors of pages and actions that have a status of their own.
var (
	errNoPage = errors.New("there is no such page")
	errRole   = errors.New("your sign-in may not do this")
)

func statusOf(err error) int {
	switch {
	case errors.Is(err, errNoPage):
		return http.StatusNotFound
	case errors.Is(err, errRole):
		return http.StatusForbidden
	}
	return http.StatusUnprocessableEntity
}

// endingSoon is how long before its end a sign-in is warned of.
const endingSoon = 3 * 24 * time.Hour

// ticket gives one download to a browser, which cannot send the token with it.
type ticket struct {
	session Session
	until   time.Time
	write   func(ctx context.Context, w http.ResponseWriter) error
}

const (
	ticketLife   = time.Minute
	maxTickets   = 32
	downloadTime = time.Hour
)

// randomID is a name that nobody guesses.
func randomID() string {
	raw := make([]byte, 20)
	_, _ = rand.Read(raw) // it cannot fail
	return hex.EncodeToString(raw)
}

// newTicket returns the path of a download that works once, within ticketLife.
func (c *Console) newTicket(s Session, write func(context.Context, http.ResponseWriter) error) (string, error) {
	id, now := randomID(), time.Now()
	c.mu.Lock()
	defer c.mu.Unlock()
	if len(c.tickets) >= maxTickets {
		return "", errors.New("too many downloads were begun; try again in a minute")
	}
	c.tickets[id] = ticket{s, now.Add(ticketLife), write}
	time.AfterFunc(ticketLife, func() { // it may hold a private key
		c.mu.Lock()
		defer c.mu.Unlock()
		delete(c.tickets, id)
	})
	return "/api/download/" + id, nil
}

func (c *Console) download(w http.ResponseWriter, r *http.Request, id string) {
	c.mu.Lock()
	t, ok := c.tickets[id]
	if r.Method == http.MethodGet {
		delete(c.tickets, id)
	}
	c.mu.Unlock()
	if !ok || r.Method != http.MethodGet || time.Now().After(t.until) || !c.access.valid(t.session.ID) {
		http.Error(w, "the download has ended; begin it again in the console", http.StatusNotFound)
		return
	}
	if !connlimit.LastingRequest(r, t.session.ID) {
		return
	}
	out := http.NewResponseController(w)
	_ = out.SetReadDeadline(time.Time{}) // it would end the request over HTTP/1
	_ = out.SetWriteDeadline(time.Now().Add(downloadTime))
	ctx, cancel := context.WithCancel(r.Context())
	defer cancel()
	go c.endWith(ctx, t.session, cancel)
	if err := t.write(ctx, w); err != nil {
		c.cfg.Log.Warn("a download from the web console failed", "err", err)
		panic(http.ErrAbortHandler) // the browser sees an incomplete answer
	}
}
