package kine

import (
	"context"
	"os"
	"sync"

	"github.com/k3s-io/kine/pkg/drivers"
	"github.com/k3s-io/kine/pkg/drivers/mysql"
	"github.com/k3s-io/kine/pkg/drivers/pgsql"
	"github.com/k3s-io/kine/pkg/server"

	"rivulet/appliance/engine/datastore"
)

// The drivers of SQL servers are kine's own, with its log and its watches.
func init() {
	drivers.Register("postgres", elected(pgsql.New))
	drivers.Register("mysql", elected(mysql.New))
}

// elected is a driver with elections of leaders where the cluster has standbys: there an engine that was frozen may go
// on beside the next one. Elsewhere a cluster has one server, and a controller that leads would end the engine when the
// SQL server does not answer, and wait for its own lease after a power cut.
func elected(driver drivers.Constructor) drivers.Constructor {
	return func(ctx context.Context, wg *sync.WaitGroup, cfg *drivers.Config) (leaderElect bool, b server.Backend, err error) {
		_, b, err = driver(ctx, wg, cfg)
		return os.Getenv(datastore.ElectEnv) != "", b, err
	}
}
