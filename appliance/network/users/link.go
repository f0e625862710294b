package users

import (
	"bytes"
	"context"
	"crypto/sha256"
	"crypto/tls"
	"crypto/x509"
	"encoding/base64"
	"errors"
	"fmt"
	"html/template"
	"net"
	"net/http"
	"strings"
	"time"

	"rivulet/fabric/httpserver"
)

const (
	// linkLife is the validity of a link.
	linkLife = 7 * 24 * time.Hour
	// LinkPath is the path of links, before their token.
	LinkPath = "/k/"
	// linkBody bounds the size of a request, bytes.
	linkBody = 1 << 10
)

// links answers browsers at the control port: a page for a link's token, and once, at its button, the kubeconfig. Each
// connection has one request, and keeps the limits of a stranger.
//
//	GET  /k/TOKEN   a page, so that link previews of mail and chat programs do not use up the link
//	POST /k/TOKEN   the file
type links struct {
	incoming
	access *Access
	cert   tls.Certificate
}

func newLinks(ctx context.Context, a *Access) (*links, error) {
	cert, err := a.linkCertificate()
	return &links{incoming{make(chan net.Conn), ctx}, a, cert}, err
}

// linkCertificate uses a curve that browsers support, and is the same at every start.
func (a *Access) linkCertificate() (tls.Certificate, error) {
	key, err := derived(a.cfg.Key.Seed(), "rivulet control port, browsers")
	if err != nil {
		return tls.Certificate{}, err
	}
	return serving(key)
}

// pin is the SHA-256 of a certificate's public key, in curl's form.
func pin(c tls.Certificate) (string, error) {
	leaf, err := x509.ParseCertificate(c.Certificate[0])
	if err != nil {
		return "", err
	}
	sum := sha256.Sum256(leaf.RawSubjectPublicKeyInfo)
	return base64.StdEncoding.EncodeToString(sum[:]), nil
}

func (s *links) serve() {
	server := httpserver.New(httpserver.Links, s, s.access.cfg.Log)
	server.TLSConfig = &tls.Config{MinVersion: tls.VersionTLS12, Certificates: []tls.Certificate{s.cert}, SessionTicketsDisabled: true}
	server.SetKeepAlivesEnabled(false) // one request
	stop := context.AfterFunc(s.closed, func() { server.Close() })
	defer stop()
	server.ServeTLS(s, "", "") //nolint:errcheck // ends with the context
}

var linkPage = template.Must(template.New("link").Parse(`<!doctype html><html lang="en"><meta charset="utf-8"><meta name="viewport" content="width=device-width">
<title>{{.Title}}</title><h1>{{.Title}}</h1><p>{{.Text}}</p>{{if .Button}}<form method="post"><button>Download the kubeconfig</button></form>{{end}}
`))

// linkText is what a page has.
type linkText struct {
	Title, Text string
	Button      bool
}

func (s *links) ServeHTTP(w http.ResponseWriter, q *http.Request) {
	for k, v := range map[string]string{
		"Content-Security-Policy": "default-src 'none'; form-action 'self'; frame-ancestors 'none'; base-uri 'none'",
		"X-Content-Type-Options":  "nosniff", "Referrer-Policy": "no-referrer", "Cache-Control": "no-store",
	} {
		w.Header().Set(k, v)
	}
	page := func(code int, p linkText) {
		var out bytes.Buffer
		if err := linkPage.Execute(&out, p); err != nil {
			http.Error(w, err.Error(), http.StatusInternalServerError)
			return
		}
		w.Header().Set("Content-Type", "text/html; charset=utf-8")
		w.WriteHeader(code)
		w.Write(out.Bytes()) //nolint:errcheck // the visitor has gone
	}
	path := strings.ToLower(q.URL.Path)
	token, ok := strings.CutPrefix(path, LinkPath)
	hash, valid := tokenHash(token)
	if !ok || !valid {
		page(http.StatusNotFound, linkText{Title: "No such page", Text: "Copy the whole link."})
		return
	}
	q.Body = http.MaxBytesReader(w, q.Body, linkBody)
	now, sure := s.access.cfg.Clock.Plausible()
	r, known := s.access.list.linked(hash)
	switch {
	case !known:
		page(http.StatusNotFound, linkText{Title: "No such link", Text: "It is not one of this device, or it has ended. Get another."})
	case !sure:
		page(http.StatusServiceUnavailable, linkText{Title: "Not now", Text: "The device's clock cannot be right, so it is not known who has access. Try again later."})
	case r.over(now):
		page(http.StatusGone, linkText{Title: "The access has ended", Text: fmt.Sprintf("It is %s. Get another link.", r.state(now))})
	case r.active(now):
		page(http.StatusGone, linkText{Title: "The link has ended", Text: "It was used. If it was not you who used it, have the access revoked. Get another link."})
	case q.Method == http.MethodGet || q.Method == http.MethodHead:
		page(http.StatusOK, linkText{"Virtual cluster " + r.VCluster, fmt.Sprintf("The kubeconfig of %s, role %s, until %s. The link works once.", r.User, r.Role, r.Expires.UTC().Format(time.DateOnly)), true})
	case q.Method != http.MethodPost:
		w.Header().Set("Allow", "GET, HEAD, POST")
		page(http.StatusMethodNotAllowed, linkText{Title: "Not so", Text: "Use GET or POST."})
	default:
		file, err := s.redeem(r, now, "https://"+q.Host)
		if err != nil {
			page(http.StatusServiceUnavailable, linkText{Title: "It does not work", Text: err.Error()})
			return
		}
		s.access.cfg.Log.Info("the link to a kubeconfig was used", "user", r.User, "vcluster", r.VCluster, "from", q.RemoteAddr)
		w.Header().Set("Content-Type", "application/yaml")
		w.Header().Set("Content-Disposition", `attachment; filename="`+r.VCluster+`.kubeconfig"`)
		w.Write(file) //nolint:errcheck // the visitor has gone
	}
}

// redeem makes the user's key, uses up the link, and returns the file. A failure after that has used it up, too. The
// private key is in the file only.
func (s *links) redeem(r record, now time.Time, server string) ([]byte, error) {
	key, err := NewKey()
	if err != nil {
		return nil, err
	}
	public, err := x509.MarshalPKIXPublicKey(key.Public())
	if err != nil {
		return nil, err
	}
	if r, err = s.access.list.use(r, sha256.Sum256(public), now); err != nil {
		return nil, err
	}
	made, err := s.access.describe(r, now)
	if err != nil {
		return nil, err
	}
	made.Servers = []string{server}
	return File(made, key)
}

// linked returns the record of a link, by the hash of its token.
func (l *list) linked(hash []byte) (record, bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, r := range l.all {
		if r.same(record{Token: hash}) {
			return r, true
		}
	}
	return record{}, false
}

// use marks a link as used, and gives its record the key.
func (l *list) use(r record, key [sha256.Size]byte, now time.Time) (used record, err error) {
	err = l.change(func(all []record) ([]record, error) {
		for i := range all {
			if all[i].same(r) && all[i].state(now) == unused {
				all[i].Key, all[i].Link = key[:], time.Time{}
				used = all[i]
				return all, nil
			}
		}
		return nil, errors.New("the link was used at this moment; get another")
	})
	if err != nil {
		return used, err
	}
	return used, l.store.CopyError()
}
