package kine

import (
	"context"
	"sync"

	"github.com/k3s-io/kine/pkg/drivers"
	"github.com/k3s-io/kine/pkg/drivers/mysql"
	"github.com/k3s-io/kine/pkg/drivers/pgsql"
	"github.com/k3s-io/kine/pkg/server"
)

// The drivers of SQL servers are kine's own, with its log and its watches.
func init() {
	drivers.Register("postgres", alone(pgsql.New))
	drivers.Register("mysql", alone(mysql.New))
}

// alone is a driver without elections of leaders: a cluster has one server, and a controller that leads would end the
// engine when the SQL server does not answer, and wait for its own lease after a power cut.
func alone(driver drivers.Constructor) drivers.Constructor {
	return func(ctx context.Context, wg *sync.WaitGroup, cfg *drivers.Config) (leaderElect bool, b server.Backend, err error) {
		_, b, err = driver(ctx, wg, cfg)
		return false, b, err
	}
}
