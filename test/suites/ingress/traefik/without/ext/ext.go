// Package ext is what Traefik lets others add to its configuration: nothing.
package ext

type (
	// HTTP is added to the configuration of HTTP.
	HTTP struct{}
	// Router is added to that of a router.
	Router struct{}
)
