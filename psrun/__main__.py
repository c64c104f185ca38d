from psrun.cli.main import main

main()
