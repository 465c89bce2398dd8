-- Other roles may be able to create functions and operators in a schema of the search path, and PostgreSQL prefers one
-- that fits the types of the arguments exactly to its own polymorphic ones. Sessions of Hark do without that path, and so
-- does every procedure, whatever session calls it. The exceptions are what PostgreSQL puts into the calling statement in
-- place of the call, which it would not do then: SQL expressions without a table, and sets that are declared stable.
do $$
declare
    v_procedure regprocedure;
begin
    for v_procedure in
        select p.oid from pg_proc p join pg_language l on l.oid = p.prolang
        where p.pronamespace = 'hark'::regnamespace and not (l.lanname = 'sql' and (
            p.prosrc !~ '\m(from|join|into|update)\s+hark\.' or (p.proretset and p.provolatile <> 'v')))
    loop
        execute format('alter function %s set search_path = pg_catalog, pg_temp', v_procedure);
    end loop;
end $$;
