package api

import (
	"net/http"

	"rivulet/appliance/config"
)

// Configuration serves the configuration in force.
type Configuration struct {
	*config.Follower
	Engine interface{ Pending() []string } // as in Config
}

// Status is what is in force.
func (c Configuration) Status() Config {
	l := c.Now()
	return Config{File: l.File, From: l.From, Loaded: l.At, Broken: len(l.Problems) > 0, Pending: c.Engine.Pending()}
}

// Routes registers `rivulet config show` and `rivulet config reload`.
func (c Configuration) Routes(mux *http.ServeMux) {
	mux.Handle("GET /v1/config", JSON(func(*http.Request) (any, error) {
		v := c.Now().View(c.NodeName)
		v.Pending = c.Engine.Pending()
		return v, nil
	}))
	mux.Handle("POST /v1/config/reload", JSON(func(*http.Request) (any, error) {
		is, changed := c.Again()
		return Reloaded{Config: c.Status(), Changed: changed, Problems: is.Problems}, nil
	}))
}
