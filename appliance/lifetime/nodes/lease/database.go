package lease

import (
	"context"
	"database/sql"
	"errors"

	"rivulet/appliance/config/sqlserver"
	"rivulet/fabric/cure"
)

// database is the store of a cluster. Each statement is a transaction of its own, so that a connection that is cut
// leaves no lock behind.
type database struct {
	sqlserver.Server
	*sql.DB
}

// open does not connect yet. At most one idle connection is kept. A connection whose statement has timed out is closed
// by its driver, and the next statement has a new one: a connection that was cut costs one timeout.
func open(address string) (*database, error) {
	at, err := sqlserver.Parse(address)
	if err != nil {
		return nil, err
	}
	pool, err := at.Open()
	if err != nil {
		return nil, err
	}
	pool.SetMaxIdleConns(1)
	return &database{at, pool}, nil
}

// with opens the database for one call.
func with(ctx context.Context, address string, call func(context.Context, *database) error) error {
	db, err := open(address)
	if err != nil {
		return err
	}
	defer db.Close()
	ctx, cancel := context.WithTimeout(ctx, 5*timeout)
	defer cancel()
	return db.Explain(call(ctx, db))
}

// Explain adds a cure where there is none.
func (db *database) Explain(err error) error {
	var cured *cure.Error
	switch {
	case errors.As(err, &cured):
		return err
	case errors.Is(err, sql.ErrNoRows), sqlserver.NoTable(err):
		return cure.Errorf("%s has lost which server is the gateway of this cluster: it was replaced, or its table rivulet_gateway was deleted; restore the database from its own backup", db)
	}
	return db.Server.Explain(err)
}

// exec returns the number of rows that were changed.
func (db *database) exec(ctx context.Context, statement string, args ...any) (int64, error) {
	result, err := db.ExecContext(ctx, db.Bind(statement), args...)
	if err != nil {
		return 0, err
	}
	return result.RowsAffected()
}

func (db *database) begin(ctx context.Context, node, note string) (r row, err error) {
	if _, err := db.exec(ctx, "CREATE TABLE IF NOT EXISTS rivulet_gateway (id INTEGER PRIMARY KEY, holder VARCHAR(80) NOT NULL, beat BIGINT NOT NULL, note VARCHAR(64) NOT NULL)"); err != nil {
		return r, err
	}
	r, err = db.read(ctx)
	if !errors.Is(err, sql.ErrNoRows) {
		return r, err
	}
	_, err = db.exec(ctx, "INSERT INTO rivulet_gateway (id, holder, beat, note) VALUES (1, ?, 1, ?)", node, note)
	return row{node, 1, note}, err
}

func (db *database) read(ctx context.Context) (r row, err error) {
	err = db.QueryRowContext(ctx, "SELECT holder, beat, note FROM rivulet_gateway WHERE id = 1").Scan(&r.holder, &r.beat, &r.note)
	return r, err
}

func (db *database) swap(ctx context.Context, old row, holder, note string) (bool, error) {
	n, err := db.exec(ctx, "UPDATE rivulet_gateway SET holder = ?, beat = beat + 1, note = ? WHERE id = 1 AND holder = ? AND beat = ?",
		holder, note, old.holder, old.beat)
	return n == 1, err
}
