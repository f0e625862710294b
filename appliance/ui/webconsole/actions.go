package webconsole

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"html/template"
	"io"
	"net/http"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"rsc.io/qr"

	"rivulet/appliance/api"
	"rivulet/appliance/diagnose/doctor"
	"rivulet/appliance/diagnose/trace"
	"rivulet/appliance/operate"
	"rivulet/appliance/vcluster"
	"rivulet/fabric/peer"
	"rivulet/offload/consumer/drain"
	"rivulet/offload/policy"
)

// action is what a button does. It is a client of what the command line uses.
type action struct {
	least Role
	do    func(context.Context, *Console, *call) (result, error)
}

// call is a press of a button.
type call struct {
	url.Values
	Session Session
}

// result is the answer to the script.
type result struct {
	// Confirm is what ends; the same call with Confirmed set to Token does it.
	Confirm string `json:"confirm,omitempty"`
	Token   string `json:"token,omitempty"`
	// Notice is shown on the page, HTML in a dialog. Go is the next page, Download a file.
	Notice   string        `json:"notice,omitempty"`
	HTML     template.HTML `json:"html,omitempty"`
	Go       string        `json:"go,omitempty"`
	Download string        `json:"download,omitempty"`
}

// actions are all actions, by name.
var actions = map[string]action{
	"approve": {Operate, func(ctx context.Context, c *Console, q *call) (result, error) {
		return c.met(ctx, "/v1/peers/approve", api.Word{Peer: q.Get("peer")})
	}},
	"join": {Operate, func(ctx context.Context, c *Console, q *call) (result, error) {
		return c.met(ctx, "/v1/invites/accept", api.Word{Invite: q.Get("invite")})
	}},
	"deny":     {Operate, deny},
	"unpeer":   {Admin, unpeer},
	"roles":    {Admin, roles},
	"cordon":   {Operate, func(ctx context.Context, c *Console, q *call) (result, error) { return cordon(ctx, c, q, true) }},
	"uncordon": {Operate, func(ctx context.Context, c *Console, q *call) (result, error) { return cordon(ctx, c, q, false) }},
	"drain":    {Operate, drainPeer},
	"open": {Admin, func(ctx context.Context, c *Console, q *call) (result, error) {
		what := strings.TrimSpace(q.Get("what"))
		return result{Notice: what + " is open to the peer."}, c.cluster().Open(ctx, what, q.Get("peer"))
	}},
	"close": {Admin, func(ctx context.Context, c *Console, q *call) (result, error) {
		if ask, yes := q.confirmed(q.Get("what") + " is closed to all that it is open to, and their connections end"); !yes {
			return ask, nil
		}
		return result{Notice: q.Get("what") + " is closed."}, c.cluster().Close(ctx, q.Get("what"))
	}},
	"upgrade": {Admin, func(ctx context.Context, c *Console, q *call) (result, error) {
		if ask, yes := q.confirmed("Rivulet starts again with the new version; pods go on. If it does not become ready, the former version comes back"); !yes {
			return ask, nil
		}
		return result{Notice: "The upgrade begins. This page continues by itself."}, c.call(ctx, http.MethodPost, "/v1/upgrade", api.UpgradeRequest{Now: true}, nil)
	}},
	"clock":       {Admin, setClock},
	"offload":     {Operate, offloadNamespace},
	"invite":      {Operate, invite},
	"trace":       {Operate, traceWay},
	"shell-input": {Admin, shellInput},
	"invite-revoke": {Operate, func(ctx context.Context, c *Console, q *call) (result, error) {
		if ask, yes := q.confirmed("the invite " + q.Get("id") + " can be used by nobody any more"); !yes {
			return ask, nil
		}
		return result{Notice: "The invite is revoked."}, c.call(ctx, http.MethodPost, "/v1/invites/revoke", api.Word{Invite: q.Get("id")}, nil)
	}},
	"fix":             {Admin, fix},
	"vcluster-sleep":  {Operate, vclusterAct("sleep", "%s sleeps. The next request wakes it; its pods go on.")},
	"vcluster-resume": {Operate, vclusterAct("resume", "%s is awake.")},
	"vcluster-create": {Admin, vclusterCreate},
	"vcluster-kubeconfig": {Admin, func(ctx context.Context, c *Console, q *call) (result, error) {
		want := api.KubeconfigRequest{User: "owner", Role: "admin", VCluster: q.Get("name"), For: 30 * 24 * time.Hour}
		var given api.Kubeconfigs
		if err := c.get(ctx, "/v1/kubeconfigs", &given); err != nil {
			return result{}, err
		}
		for _, k := range given.Kubeconfigs {
			if k.VCluster != want.VCluster || k.User != want.User || k.State != "active" && k.State != "unused" {
				continue
			}
			if ask, yes := q.confirmed(fmt.Sprintf("the kubeconfig that user %s of %s has (%s, valid until %s) ends, open connections included. The new one is in its place", k.User, k.VCluster, k.State, k.Expires.UTC().Format("2006-01-02"))); !yes {
				return ask, nil
			}
			want.Replace = true
		}
		return c.kubeconfig(ctx, q, want)
	}},
	"vcluster-delete":   {Admin, vclusterDelete},
	"kubeconfig":        {Admin, kubeconfig},
	"kubeconfig-revoke": {Admin, kubeconfigRevoke},
	"code":              {Admin, code},
	"session-end": {Admin, func(_ context.Context, c *Console, q *call) (result, error) {
		if q.Get("id") == "" {
			return result{}, errors.New("no sign-in is named; load the page again")
		}
		what := "the sign-in ends, and what it has open"
		if q.Get("id") == q.Session.ID {
			what = "this browser is signed out"
		}
		if ask, yes := q.confirmed(what); !yes {
			return ask, nil
		}
		return result{Notice: "The sign-in has ended."}, c.access.signOut(q.Get("id"))
	}},
	"session-renew": {Admin, func(_ context.Context, c *Console, q *call) (result, error) {
		return result{Notice: "The sign-in goes on for 30 days."}, c.access.renew(q.Get("id"))
	}},
	"leave": {View, func(_ context.Context, c *Console, q *call) (result, error) {
		return result{Go: "/"}, c.access.signOut(q.Session.ID)
	}},
	"backup":  {Admin, backup},
	"support": {Admin, support},
}

func (c *Console) serveAction(w http.ResponseWriter, r *http.Request, s Session, name string) {
	a, ok := actions[name]
	if !ok {
		answer(w, http.StatusNotFound, failure{Error: "there is no such action", Cure: "load the page again"})
		return
	}
	if !s.Role.Includes(a.least) {
		answer(w, http.StatusForbidden, failed(fmt.Errorf("%w: it has the role %s, and this needs %s; sign in with a code of that role: sudo rivulet console login --role %[3]s", errRole, s.Role, a.least)))
		return
	}
	r.ParseMultipartForm(maxBody)                                  //nolint:errcheck // a form that is unreadable has no values
	_ = http.NewResponseController(w).SetReadDeadline(time.Time{}) // it would end the action over HTTP/1
	_ = http.NewResponseController(w).SetWriteDeadline(time.Now().Add(2 * time.Minute))
	q := &call{r.PostForm, s}
	if q.Values == nil {
		q.Values = url.Values{}
	}
	out, err := a.do(r.Context(), c, q)
	if out.Confirm == "" {
		c.cfg.Log.Info("web console", "action", name, "session", s.ID, "role", s.Role, "from", r.RemoteAddr, "err", err)
	}
	if err != nil {
		answer(w, statusOf(err), failed(err))
		return
	}
	if name != "shell-input" {
		c.views.forget() // the next page shows the change
	}
	answer(w, http.StatusOK, out)
}

// forget makes the next request for each page make it again.
func (w *views) forget() {
	w.mu.Lock()
	w.made = nil
	w.mu.Unlock()
	w.statusMu.Lock()
	defer w.statusMu.Unlock()
	w.stale = true
}

// confirmed asks before something ends, and again if something else would end than what was confirmed. what is
// sentences, of which the last has no full stop.
func (q *call) confirmed(what string) (result, bool) {
	sum := sha256.Sum256([]byte(what))
	token := hex.EncodeToString(sum[:8])
	if q.Get("confirmed") == token {
		return result{}, true
	}
	return result{Confirm: strings.ToUpper(what[:1]) + what[1:] + ".", Token: token}, false
}

// cluster is the same as the command line's.
func (c *Console) cluster() operate.Cluster {
	return operate.Cluster{Client: c.client, Supervisor: api.Client{RunDir: c.cfg.RunDir}}
}

// met sends a decision to become a peer.
func (c *Console) met(ctx context.Context, path string, w api.Word) (result, error) {
	var v peer.View
	if err := c.call(ctx, http.MethodPost, path, w, &v); err != nil {
		return result{}, err
	}
	name := operate.NameOf(v)
	switch {
	case !v.State.Apart():
		return result{Notice: name + " is a peer. " + v.Notice, Go: "/peers/" + string(v.ID)}, nil
	case v.State == peer.Refused:
		return result{}, fmt.Errorf("the decision is stored, but %s is no peer yet: %s", name, v.Reason)
	}
	return result{Notice: fmt.Sprintf("The decision is stored; %s is %s: %s", name, strings.ToLower(string(v.State)), v.Reason)}, nil
}

// setClock sets the device's clock to the browser's, which the script adds to each press.
func setClock(ctx context.Context, c *Console, q *call) (result, error) {
	ms, err := strconv.ParseInt(q.Get("now"), 10, 64)
	if err != nil {
		return result{}, errors.New("the browser does not tell its time; load the page again")
	}
	if ask, yes := q.confirmed("the clock of this device is set to that of your browser, now " + time.UnixMilli(ms).UTC().Format("2006-01-02 15:04") + " UTC. Sign-ins that are a week old by it end, perhaps this one, too"); !yes {
		return ask, nil
	}
	return result{Notice: "The clock is set."}, c.call(ctx, http.MethodPost, "/v1/clock", api.ClockRequest{Now: time.UnixMilli(ms).UTC()}, nil)
}

func deny(ctx context.Context, c *Console, q *call) (result, error) {
	e, err := c.cluster().Ending(ctx, q.Get("peer"), true, true)
	if errors.Is(err, api.ErrNotRunning) {
		return result{}, err
	}
	if e.Peer != "" {
		if ask, yes := q.confirmed(fmt.Sprintf("%s is a peer, and is cut off at once%s", e.Peer, &e)); !yes {
			return ask, nil
		}
	}
	return result{Notice: "The cluster is denied. Approve takes that back."}, c.call(ctx, http.MethodPost, "/v1/peers/deny", api.Word{Peer: q.Get("peer")}, nil)
}

// unpeer ends a peering. What would be lost for good needs --force of the command line.
func unpeer(ctx context.Context, c *Console, q *call) (result, error) {
	e, err := c.cluster().Ending(ctx, q.Get("peer"), true, true)
	if err == nil {
		err = e.Lost()
	}
	if err != nil {
		return result{}, err
	}
	if e.Peer != "" {
		if ask, yes := q.confirmed(fmt.Sprintf("the peering with %s ends%s. It does not come back by itself", e.Peer, &e)); !yes {
			return ask, nil
		}
	}
	var v peer.View
	err = c.call(ctx, http.MethodPost, "/v1/peers/unpeer", api.Word{Peer: q.Get("peer")}, &v)
	return result{Notice: "The peering has ended. " + v.Notice, Go: "/map"}, err
}

func roles(ctx context.Context, c *Console, q *call) (result, error) {
	w := api.Word{Peer: q.Get("peer")}
	for name, to := range map[string]**bool{"consume": &w.Consume, "provide": &w.Provide} {
		switch v := q.Get(name); v {
		case "":
		case "on", "off":
			on := v == "on"
			*to = &on
		default:
			return result{}, fmt.Errorf("%s is %.20q; load the page again", name, v)
		}
	}
	off := func(on *bool) bool { return on != nil && !*on }
	e, err := c.cluster().Ending(ctx, w.Peer, off(w.Consume), off(w.Provide))
	if err != nil {
		return result{}, err
	}
	if what := e.String(); what != "" {
		if ask, yes := q.confirmed("what is switched off with " + e.Peer + " ends" + what); !yes {
			return ask, nil
		}
	}
	return result{Notice: "Switched."}, c.call(ctx, http.MethodPost, "/v1/peers/settings", w, nil)
}

func cordon(ctx context.Context, c *Console, q *call, on bool) (result, error) {
	set, err := c.cluster().Cordon(ctx, q.Get("peer"), on)
	if on {
		return result{Notice: "No more pods are sent to " + strings.Join(set, ", ") + "; those that are there stay."}, err
	}
	return result{Notice: "Pods may go to " + strings.Join(set, ", ") + " again."}, err
}

// drainTime bounds a drain that a browser has begun; it goes on without the browser.
const drainTime = 10 * time.Minute

func drainPeer(ctx context.Context, c *Console, q *call) (result, error) {
	d, err := c.cluster().Drain(ctx, q.Get("peer"))
	if err == nil {
		err = d.Lost()
	}
	if err != nil {
		return result{}, err
	}
	if what := d.String(); what != "" {
		if ask, yes := q.confirmed("the peer takes no new pods" + what); !yes {
			return ask, nil
		}
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), drainTime)
	go func() {
		defer cancel()
		if err := d.Run(ctx, false, func(drain.Event) {}); err != nil {
			c.cfg.Log.Warn("a drain from the web console is not complete", "peer", q.Get("peer"), "err", err)
		}
	}()
	return result{Notice: "The pods are asked to leave, as their disruption budgets allow; the page shows those that are left. The peer stays cordoned."}, nil
}

func offloadNamespace(ctx context.Context, c *Console, q *call) (result, error) {
	cl, ns, how := c.cluster(), q.Get("namespace"), policy.Namespace{When: policy.When(q.Get("when")), To: q.Get("to")}
	if how.When != policy.Off {
		if err := cl.CheckOffload(ctx, ns, how); err != nil {
			return result{}, err
		}
	}
	if how.Sends() {
		return result{Notice: fmt.Sprintf("Pods of %s that are made from now on may run on peers (%s).", ns, how.When)}, cl.Offload(ctx, ns, how, false)
	}
	away, err := cl.PodsAway(ctx, ns)
	if err != nil {
		return result{}, err
	}
	if what := drain.Ends(away); what != "" {
		if ask, yes := q.confirmed("pods of namespace " + ns + " run at home only" + what); !yes {
			return ask, nil
		}
	}
	if how.When == policy.Services {
		return result{Notice: "Pods of " + ns + " run at home only; its Services exist on peers, too."}, cl.Offload(ctx, ns, how, false)
	}
	return result{Notice: "Pods of " + ns + " run at home only."}, cl.Unoffload(ctx, ns)
}

func invite(ctx context.Context, c *Console, _ *call) (result, error) {
	var i api.Invited
	if err := c.call(ctx, http.MethodPost, "/v1/invites", api.Word{}, &i); err != nil {
		return result{}, err
	}
	return c.dialog("invited", struct {
		Code, URL string
		Until     time.Time
		QR        template.HTML
	}{i.Code, i.URL, i.Expires, drawn(strings.ToUpper(i.URL))})
}

// dialog is the HTML of a template.
func (c *Console) dialog(name string, data any) (result, error) {
	var out bytes.Buffer
	err := layout().ExecuteTemplate(&out, name, data)
	return result{HTML: template.HTML(out.String())}, err //nolint:gosec // made by html/template
}

// drawn is a QR code as an image, empty if the text is too long for one.
func drawn(text string) template.HTML {
	code, err := qr.Encode(text, qr.L)
	if err != nil {
		return ""
	}
	const quiet = 4
	var path strings.Builder
	for y := range code.Size {
		for x := range code.Size {
			if code.Black(x, y) {
				fmt.Fprintf(&path, "M%d %dh1v1h-1z", x+quiet, y+quiet)
			}
		}
	}
	size := code.Size + 2*quiet
	return template.HTML(fmt.Sprintf(`<svg class="qr" viewBox="0 0 %d %[1]d" role="img" aria-label="QR code" shape-rendering="crispEdges"><path d="%s"/></svg>`, size, path.String())) //nolint:gosec // numbers only
}

// traceWay follows a connection to a Service or a pod.
func traceWay(ctx context.Context, c *Console, q *call) (result, error) {
	var r trace.Report
	if err := c.get(ctx, trace.Path+"?"+url.Values{"object": {q.Get("object")}, "namespace": {q.Get("namespace")}}.Encode(), &r); err != nil {
		return result{}, err
	}
	return c.dialog("trace", r)
}

func fix(ctx context.Context, c *Console, q *call) (result, error) {
	var done []doctor.Fixed
	if err := c.call(ctx, http.MethodPost, "/v1/doctor/fixes/"+url.PathEscape(q.Get("code")), nil, &done); err != nil {
		return result{}, err
	}
	var notes []string
	for _, f := range done {
		if f.Error != "" {
			return result{}, errors.New(f.Says + ": " + f.Error)
		}
		note := "Repaired: " + f.Says + "."
		if f.Reboot {
			note += " Reboot for it to take effect."
		}
		notes = append(notes, note)
	}
	return result{Notice: strings.Join(notes, " ")}, nil
}

func vclusterPath(name string) string { return "/v1/vclusters/" + url.PathEscape(name) }

func vclusterAct(verb, notice string) func(context.Context, *Console, *call) (result, error) {
	return func(ctx context.Context, c *Console, q *call) (result, error) {
		return result{Notice: fmt.Sprintf(notice, q.Get("name"))}, c.call(ctx, http.MethodPost, vclusterPath(q.Get("name"))+"/"+verb, nil, nil)
	}
}

func vclusterCreate(ctx context.Context, c *Console, q *call) (result, error) {
	var v vcluster.View
	if err := c.call(ctx, http.MethodPost, "/v1/vclusters", vcluster.Spec{Name: q.Get("name"), Sleep: vcluster.DefaultSleep, Memory: 512 << 20, Datastore: 256 << 20}, &v); err != nil {
		return result{}, err
	}
	return result{Notice: fmt.Sprintf("%s can be used, after %.1f s.", v.Name, v.Took.Seconds())}, nil
}

// vclusterDelete ends a virtual cluster. One that was made from an object is that object's.
func vclusterDelete(ctx context.Context, c *Console, q *call) (result, error) {
	name := q.Get("name")
	var v vcluster.View
	if err := c.get(ctx, vclusterPath(name), &v); err != nil {
		return result{}, err
	}
	if v.Owner.Name != "" {
		return result{}, fmt.Errorf("%s is made of the object VirtualCluster %s; delete that: rivulet kubectl -n %s delete virtualcluster %s", v.Name, v.Owner, v.Owner.Namespace, v.Owner.Name)
	}
	if ask, yes := q.confirmed(fmt.Sprintf("virtual cluster %s of %s is deleted, with all that is in it: its objects, pods and volumes. Nothing of it comes back", v.Name, v.Created.UTC().Format(time.DateTime))); !yes {
		return ask, nil
	}
	return result{Notice: v.Name + " is deleted."}, c.call(ctx, http.MethodDelete, vclusterPath(name), nil, nil)
}

func kubeconfig(ctx context.Context, c *Console, q *call) (result, error) {
	life, err := operate.Lifetime(q.Get("for"))
	if err != nil {
		return result{}, err
	}
	return c.kubeconfig(ctx, q, api.KubeconfigRequest{User: q.Get("user"), Role: q.Get("role"), Namespace: q.Get("namespace"), For: life})
}

// kubeconfig makes a file and lets the browser have it once.
func (c *Console) kubeconfig(ctx context.Context, q *call, want api.KubeconfigRequest) (result, error) {
	made, err := c.cluster().Kubeconfig(ctx, want, "")
	if err != nil {
		return result{}, err
	}
	name := want.User
	if want.VCluster != "" {
		name = want.VCluster
	}
	at, err := c.newTicket(q.Session, func(_ context.Context, w http.ResponseWriter) error {
		attach(w, name+".kubeconfig", "application/yaml")
		_, err := w.Write(made.File)
		return err
	})
	return result{Download: at, Notice: strings.TrimSpace(fmt.Sprintf("The kubeconfig of %s is valid until %s. %s", want.User, made.Expires.UTC().Format(time.DateTime), made.Warning))}, err
}

func attach(w http.ResponseWriter, name, kind string) {
	w.Header().Set("Content-Type", kind)
	w.Header().Set("Content-Disposition", fmt.Sprintf("attachment; filename=%q", name))
}

func kubeconfigRevoke(ctx context.Context, c *Console, q *call) (result, error) {
	if ask, yes := q.confirmed("the access of " + q.Get("user") + " ends at once, open connections included"); !yes {
		return ask, nil
	}
	return result{Notice: q.Get("user") + " has no access any more."}, c.cluster().RevokeKubeconfig(ctx, q.Get("user"), q.Get("vcluster"))
}

// code makes a code for another browser.
func code(_ context.Context, c *Console, q *call) (result, error) {
	made, err := c.login(Role(q.Get("role")))
	if err != nil {
		return result{}, err
	}
	return c.dialog("login", struct {
		Login
		QR template.HTML
	}{made, drawn(made.Link)})
}

func backup(ctx context.Context, c *Console, q *call) (result, error) {
	pass := q.Get("passphrase")
	if strings.ContainsAny(pass, "\r\n") {
		return result{}, errors.New("the passphrase has more than one line; choose another")
	}
	if pass == "" {
		if ask, yes := q.confirmed("without a passphrase, whoever has the file has the private keys and Secrets of this cluster"); !yes {
			return ask, nil
		}
	}
	at, err := c.newTicket(q.Session, func(ctx context.Context, w http.ResponseWriter) error {
		args := []string{"backup", "-"}
		if pass != "" {
			args = append(args, "--passphrase-file", "/dev/fd/3")
		}
		attach(w, "rivulet-backup-"+time.Now().UTC().Format("20060102-150405"), "application/octet-stream")
		return c.command(ctx, w, pass, args...)
	})
	return result{Download: at, Notice: "The backup has private keys: keep it like a key."}, err
}

func support(_ context.Context, c *Console, q *call) (result, error) {
	at, err := c.newTicket(q.Session, func(ctx context.Context, w http.ResponseWriter) error {
		attach(w, "rivulet-support-"+time.Now().UTC().Format("20060102-150405")+".tar.gz", "application/gzip")
		return c.command(ctx, w, "", "support", "-o", "-")
	})
	return result{Download: at, Notice: "It takes up to half a minute. Look at it before you give it away: it has no keys and passwords, but names and addresses."}, err
}

// command writes the output of a command of this program; secret, if there is one, is the content of its file 3.
func (c *Console) command(ctx context.Context, out io.Writer, secret string, args ...string) error {
	cmd := exec.CommandContext(ctx, c.cfg.Executable, args...)
	cmd.Env = append(os.Environ(), "RIVULET_STATE="+c.cfg.StateDir, "RIVULET_RUNTIME="+c.cfg.RunDir)
	var said bytes.Buffer
	cmd.Stdout, cmd.Stderr = out, &said
	if secret != "" {
		r, w, err := os.Pipe()
		if err != nil {
			return err
		}
		defer r.Close()
		go func() {
			defer w.Close()
			_, _ = io.WriteString(w, secret+"\n")
		}()
		cmd.ExtraFiles = []*os.File{r}
	}
	if err := cmd.Run(); err != nil {
		return fmt.Errorf("rivulet %s: %w: %.300s", filepath.Base(args[0]), err, said.String())
	}
	return nil
}
