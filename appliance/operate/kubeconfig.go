package operate

import (
	"context"
	"crypto/ecdsa"
	"fmt"
	"net/http"
	"net/url"
	"strconv"
	"strings"
	"time"

	"rivulet/appliance/api"
	"rivulet/appliance/network/users"
)

// Kubeconfig is a user's new access.
type Kubeconfig struct {
	api.NewKubeconfig
	// File has the private key, which is stored nowhere else; nil with Link.
	File []byte
	// URL gives the file once, with a key that is made then; only with Link.
	URL string
}

// Kubeconfig creates a key, or the token of a link, and registers it for a user; the request's certificate is made here.
// server is the device's address or URL for the file; empty: its first address on the LAN. The request may take a minute.
func (c Cluster) Kubeconfig(ctx context.Context, q api.KubeconfigRequest, server string) (made Kubeconfig, err error) {
	var key *ecdsa.PrivateKey
	token := ""
	if q.Link {
		token, q.Token = users.NewToken()
	} else {
		if key, err = users.NewKey(); err != nil {
			return made, err
		}
		if q.Certificate, err = users.Certificate(key, q.User, time.Now().Add(q.For)); err != nil {
			return made, err
		}
	}
	ctx, cancel := context.WithTimeout(ctx, time.Minute)
	defer cancel()
	if err := c.Supervisor.Call(ctx, http.MethodPost, "/v1/kubeconfigs", q, &made.NewKubeconfig); err != nil {
		return made, err
	}
	if server != "" {
		if !strings.Contains(server, "://") {
			server = "https://" + server
		}
		if u, err := url.Parse(server); err == nil && u.Port() == "" {
			server += ":7442"
		}
		made.Servers = []string{server}
	}
	if len(made.Servers) == 0 {
		made.Servers = []string{"https://" + made.Cluster + ".local:7442"}
	}
	if q.Link {
		made.URL = made.Servers[0] + users.LinkPath + token
		return made, nil
	}
	made.File, err = users.File(made.NewKubeconfig, key)
	return made, err
}

// RevokeKubeconfig ends a user's access; the empty virtual cluster is this cluster.
func (c Cluster) RevokeKubeconfig(ctx context.Context, user, vcluster string) error {
	path := "/v1/kubeconfigs/" + url.PathEscape(user)
	if vcluster != "" {
		path += "?vcluster=" + url.QueryEscape(vcluster)
	}
	return c.Supervisor.Call(ctx, http.MethodDelete, path, nil, nil)
}

// Lifetime parses a duration that may be in days or weeks.
func Lifetime(text string) (time.Duration, error) {
	for unit, days := range map[string]time.Duration{"d": 1, "w": 7} {
		if number, ok := strings.CutSuffix(text, unit); ok {
			if n, err := strconv.ParseUint(number, 10, 16); err == nil && n <= 9999 {
				return time.Duration(n) * days * 24 * time.Hour, nil
			}
		}
	}
	if d, err := time.ParseDuration(text); err == nil {
		return d, nil
	}
	return 0, fmt.Errorf("%s is no time; write for example 30d, or 12h", text)
}
