package webconsole

import (
	"bytes"
	"cmp"
	"context"
	"crypto/sha256"
	"embed"
	"encoding/json"
	"errors"
	"fmt"
	"html/template"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"sync"
	"time"

	"rivulet/appliance/api"
	"rivulet/appliance/health"
	"rivulet/appliance/ui/summary"
	"rivulet/fabric/peer"
)

//go:embed templates
var templates embed.FS

var layout = sync.OnceValue(func() *template.Template {
	return template.Must(template.New("").Funcs(formats).ParseFS(templates, "templates/*.html"))
})

const (
	// liveEvery is the interval of a live page, viewLife how long a page is shared by all its viewers.
	liveEvery, viewLife = 2 * time.Second, 1500 * time.Millisecond
	// maxViews bounds the pages that are kept, maxPage the size of one, bytes.
	maxViews, maxPage = 64, 256 << 10
	// pageTime bounds the making of a page, maxMaking those that are made at a time: a query makes a page of its own.
	pageTime  = 10 * time.Second
	maxMaking = 4
)

// page is a page of the console. Its template has its name.
type page struct {
	// pattern is its path; {name} matches one segment.
	pattern, name, title string
	// section is the entry of the menu that it belongs to.
	section string
	// least is the least role that sees it.
	least Role
	// life is how long it is shared, if not viewLife.
	life time.Duration
	// own: it shows the session, and is not shared with others.
	own  bool
	data func(context.Context, *Console, *visit) (any, error)
}

// visit is a request for a page.
type visit struct {
	Session Session
	Status  api.Status
	// Rates are the bytes per second from and to each peer, by ID, since the status before.
	Rates map[string]rate
	Path  map[string]string
	Query url.Values
	Now   time.Time
}

type rate struct{ In, Out float64 }

// May reports whether the session has a role's rights, for templates.
func (v *visit) May(role Role) bool { return v.Session.Role.Includes(role) }

// match returns the values of a pattern's segments.
func match(pattern, path string) (map[string]string, bool) {
	want, have := strings.Split(pattern, "/"), strings.Split(path, "/")
	if len(want) != len(have) {
		return nil, false
	}
	out := map[string]string{}
	for i, segment := range want {
		name, isName := strings.CutPrefix(segment, "{")
		switch {
		case isName && have[i] != "":
			out[strings.TrimSuffix(name, "}")] = have[i]
		case segment != have[i]:
			return nil, false
		}
	}
	return out, true
}

// shown is a page as the script gets it.
type shown struct {
	Title   string        `json:"title"`
	Section string        `json:"section"`
	Device  string        `json:"device"`
	Role    Role          `json:"role"`
	Assets  string        `json:"assets"` // the version of the script that it is for
	Summary string        `json:"summary"`
	State   string        `json:"state"` // done, working, warning or error
	HTML    template.HTML `json:"html"`
}

// view is a page that was made, for all its viewers.
type view struct {
	mu   sync.Mutex
	at   time.Time
	body []byte
	err  error
}

// views are the pages that were made a moment ago, and the status that they show.
type views struct {
	mu   sync.Mutex
	made map[[32]byte]*view

	graphsMu sync.Mutex
	graphs   map[string]graphs

	statusMu sync.Mutex
	at       time.Time
	stale    bool // something was changed since
	status   api.Status
	rates    map[string]rate
}

// show is the page at a path, as JSON. All viewers of a page with the same role share it.
func (c *Console) show(ctx context.Context, s Session, at *url.URL) ([]byte, error) {
	for i := range pages {
		p := &pages[i]
		values, ok := match(p.pattern, at.Path)
		if !ok {
			continue
		}
		if !s.Role.Includes(p.least) {
			return nil, fmt.Errorf("%w: it has the role %s, and this needs %s; sign in with a code of that role: sudo rivulet console login --role %[3]s", errRole, s.Role, p.least)
		}
		key := sha256.Sum256(fmt.Appendf(nil, "%q %q %q", s.Role, at.Path, at.RawQuery))
		if p.own {
			key = sha256.Sum256(fmt.Appendf(key[:], "%s", s.ID))
		}
		v := c.views.of(key)
		v.mu.Lock()
		defer v.mu.Unlock()
		if time.Since(v.at) < max(p.life, viewLife) {
			return v.body, v.err
		}
		ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), pageTime) // others wait for it, too
		defer cancel()
		select {
		case c.making <- struct{}{}:
			defer func() { <-c.making }()
		case <-ctx.Done():
			return nil, errors.New("too many pages are asked for at this moment; try again")
		}
		v.body, v.err = c.render(ctx, p, &visit{Session: s, Path: values, Query: at.Query(), Now: c.now()})
		v.at = time.Now()
		return v.body, v.err
	}
	return nil, fmt.Errorf("%w; choose one from the menu", errNoPage)
}

// of returns the view with a key; old ones are forgotten.
func (w *views) of(key [32]byte) *view {
	w.mu.Lock()
	defer w.mu.Unlock()
	if v, ok := w.made[key]; ok {
		return v
	}
	if w.made == nil || len(w.made) >= maxViews {
		w.made = map[[32]byte]*view{}
	}
	v := &view{}
	w.made[key] = v
	return v
}

func (c *Console) render(ctx context.Context, p *page, v *visit) ([]byte, error) {
	var err error
	if v.Status, v.Rates, err = c.status(ctx); err != nil {
		return nil, err
	}
	sum := summary.Of(v.Status, v.Now)
	data, err := p.data(ctx, c, v)
	if err != nil {
		return nil, err
	}
	var out bytes.Buffer
	if err := layout().ExecuteTemplate(&out, p.name+".html", struct {
		*visit
		Summary summary.View
		Data    any
	}{v, sum, data}); err != nil {
		return nil, fmt.Errorf("the page cannot be made: %w; see: rivulet status", err)
	}
	if out.Len() > maxPage {
		return nil, fmt.Errorf("the page is too long, %d bytes; use kubectl for this", out.Len())
	}
	title := summary.Line(strings.TrimSpace(p.title + " " + v.subject()))
	return json.Marshal(shown{title, p.section, sum.Name, v.Session.Role, assetsVersion(), sum.Summary, state(sum), template.HTML(out.String())}) //nolint:gosec // made by html/template
}

// subject is what the page is about, for its title; empty if it is about all.
func (v *visit) subject() string {
	if name := v.Path["name"]; name != "" {
		return v.Path["namespace"] + "/" + name
	}
	for _, p := range v.Status.PeerList() {
		if string(p.ID) == v.Path["id"] {
			return cmp.Or(p.Name, p.ID.Short())
		}
	}
	return v.Query.Get("namespace")
}

// state is the colour of a device.
func state(v summary.View) string {
	worst := "done"
	for _, p := range v.Problems {
		switch {
		case p.Severity == health.Error:
			worst = "error"
		case p.Severity == health.Warning && worst == "done":
			worst = "warning"
		}
	}
	if !v.Ready && worst != "error" {
		return "working"
	}
	return worst
}

// status is the supervisor's, at most viewLife old, and the rates of peers since the one before.
func (c *Console) status(ctx context.Context) (api.Status, map[string]rate, error) {
	w := &c.views
	w.statusMu.Lock()
	defer w.statusMu.Unlock()
	if !w.stale && time.Since(w.at) < viewLife {
		return w.status, w.rates, nil
	}
	st, err := api.Get(ctx, c.cfg.RunDir)
	if err != nil {
		return st, nil, err
	}
	now := time.Now()
	passed := now.Sub(w.at).Seconds()
	rates := map[string]rate{}
	if st.Tunnel != nil && w.status.Tunnel != nil && passed < 30 {
		before := map[string]rate{}
		for _, p := range w.status.Tunnel.Peers {
			before[p.ID] = rate{float64(p.Received), float64(p.Sent)}
		}
		for _, p := range st.Tunnel.Peers {
			if b, ok := before[p.ID]; ok && float64(p.Received) >= b.In && float64(p.Sent) >= b.Out {
				rates[p.ID] = rate{(float64(p.Received) - b.In) / passed, (float64(p.Sent) - b.Out) / passed}
			}
		}
	}
	w.at, w.stale, w.status, w.rates = now, false, st, rates
	return st, rates, nil
}

// call sends a request to the supervisor, as the command line does.
func (c *Console) call(ctx context.Context, method, path string, in, out any) error {
	return api.CallWithin(ctx, time.Minute, c.cfg.RunDir, method, path, in, out)
}

func (c *Console) get(ctx context.Context, path string, out any) error {
	return c.call(ctx, http.MethodGet, path, nil, out)
}

// peers are those of the status in the order of a page: the operator has to do something, peers, the rest.
func peers(st api.Status) []api.Peer {
	list := st.PeerList()
	rank := func(p api.Peer) int {
		switch p.State {
		case peer.Waiting:
			return 0
		case peer.Connected, peer.Connecting, peer.Lost:
			return 1
		case peer.Denied:
			return 3
		}
		return 2
	}
	slices.SortStableFunc(list, func(a, b api.Peer) int { return cmp.Or(rank(a)-rank(b), strings.Compare(a.Name, b.Name)) })
	return list
}
