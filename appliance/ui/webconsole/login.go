package webconsole

import (
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"time"

	"rivulet/appliance/api"
)

// Login is a new code, with what a person needs to use it: the answer of POST /v1/console/codes. Only this answer has
// the code.
type Login struct {
	Code    string    `json:"code"`
	Role    Role      `json:"role"`
	Expires time.Time `json:"expires"`
	// URL is the console's address, Link the same with the code.
	URL  string `json:"url"`
	Link string `json:"link"`
	// Fingerprint is the SHA-256 of the console's certificate, as browsers show it.
	Fingerprint string `json:"fingerprint"`
}

// Sessions is the answer of GET /v1/console/sessions.
type Sessions struct {
	Sessions []Session `json:"sessions"`
}

// login makes a code.
func (c *Console) login(role Role) (Login, error) {
	at := c.URL()
	if at == "" {
		return Login{}, errors.New("the web console is off, or has not started; switch it on with console: true in /etc/rivulet/config.yaml, and see: rivulet status")
	}
	code, until, err := c.access.newCode(role)
	if err != nil {
		return Login{}, err
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	return Login{Code: code.String(), Role: role, Expires: until, URL: at, Link: at + "/#code=" + code.String(), Fingerprint: fingerprint(c.cert)}, nil
}

// Routes registers the routes of `rivulet console login`, `list` and `end`.
func (c *Console) Routes(mux *http.ServeMux) {
	mux.Handle("POST /v1/console/codes", api.JSON(func(r *http.Request) (any, error) {
		var want struct {
			Role Role `json:"role"`
		}
		if err := json.NewDecoder(http.MaxBytesReader(nil, r.Body, maxBody)).Decode(&want); err != nil {
			return nil, fmt.Errorf("the request is unreadable: %w; are the command and the running rivulet of the same version?", err)
		}
		return c.login(want.Role)
	}))
	mux.Handle("GET /v1/console/sessions", api.JSON(func(*http.Request) (any, error) {
		list := c.access.list()
		for i := range list {
			list[i].Hash, list[i].Card = "", ""
		}
		return Sessions{list}, c.access.bad
	}))
	mux.Handle("DELETE /v1/console/sessions", api.JSON(func(*http.Request) (any, error) { return struct{}{}, c.access.signOut("") }))
	mux.Handle("DELETE /v1/console/sessions/{id}", api.JSON(func(r *http.Request) (any, error) { return struct{}{}, c.access.signOut(r.PathValue("id")) }))
}
